# SPDX-License-Identifier: Apache-2.0
"""What the cache of huggingface_hub holds of a repository, found without a request.

``models--owner--name/{blobs/HASH, refs/REVISION (a commit), snapshots/COMMIT/path -> ../../blobs/HASH}``
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from weight_readers.errors import CheckpointError, MissingShardError, MissingTensorError
from weight_readers_loader.resolve.index import why_unsafe
from weight_readers_loader.resolve.listing import Listing, natural_key

__all__ = [
    "HubCache",
    "Snapshot",
    "blob_of",
    "cached_repository",
    "delete_both",
    "fetched_again",
    "fetching",
    "mended_in_cache",
]

_REPOSITORY = r"(?:.*/)?models--(?P<owner>(?:(?!--)[^/])+)--(?P<name>(?:(?!--)[^/])+)"
_FOLDER = re.compile(_REPOSITORY + r"(?P<inside>/+snapshots)?/*")
_SNAPSHOT = re.compile(_REPOSITORY + r"/+snapshots/+(?P<commit>[^/]+)(?:/+(?P<inside>.*?))?/*")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What was downloaded of one commit, all of it or not."""

    commit: str
    folder: str


@dataclass(frozen=True)
class HubCache:
    """The folder of one repository in a cache."""

    folder: Path

    def snapshots(self) -> list[Snapshot]:
        try:
            names = [entry.name for entry in os.scandir(self.folder / "snapshots") if entry.is_dir()]
        except OSError:
            return []
        return [self._snapshot(name) for name in sorted(names, key=natural_key)]

    def find(self, revision: str) -> Snapshot | None:
        """The snapshot of a commit, or of the commit that a branch or tag was when it was last downloaded."""
        if why_unsafe(revision) is not None:
            return None
        try:
            # Written by hand or by other tools, a ref may end in a line break.
            commit = (self.folder / "refs" / revision).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            commit = revision
        return next((each for each in self.snapshots() if each.commit == commit), None)

    def refs(self) -> list[str]:
        root = self.folder / "refs"
        found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        return sorted(found, key=natural_key)

    def unfinished(self) -> int:
        """How many downloads began and did not end."""
        return sum(1 for _ in (self.folder / "blobs").glob("*.incomplete"))

    def _snapshot(self, commit: str) -> Snapshot:
        return Snapshot(commit=commit, folder=str(self.folder / "snapshots" / commit))


def cached_repository(listing: Listing) -> tuple[str, list[str]] | None:
    """``owner/name`` and the folders of its commits, where the place is what a cache keeps of a whole repository."""
    match = _FOLDER.fullmatch(listing.root)
    if match is None:
        return None
    snapshots = listing if match["inside"] else listing.below("snapshots")
    if snapshots is None:
        return None
    return f"{match['owner']}/{match['name']}", [snapshots.path_of(commit) for commit in snapshots.folders()]


def fetching(folder: str, name: str | None = None) -> str | None:
    """The command that downloads ``name``, or everything, to ``folder`` of a cached commit; None for other folders."""
    match = _SNAPSHOT.fullmatch(folder)
    if match is None:
        return None
    cache, inside = os.path.normpath(folder[: match.start("owner")] + "/.."), match["inside"] or ""
    files = [os.path.join(inside, name)] if name else ["--include", f"{inside}/*"] if inside else []
    where = ["--revision", match["commit"], "--cache-dir", cache]
    return shlex.join(["hf", "download", f"{match['owner']}/{match['name']}", *files, *where])


def fetched_again(folder: str, name: str | None = None) -> str:
    """What mends a file that is missing in ``folder``, or more than one."""
    command = fetching(folder, name)
    what = "Download it again" if name else "Download the whole checkpoint again"
    return f"{what}: {command}" if command else f"{what}."


def blob_of(path: str) -> str | None:
    """The blob behind a link of such a cache; None for any other path."""
    if not os.path.islink(path):
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    return target if os.path.basename(os.path.dirname(target)) == "blobs" else None


def delete_both(path: str) -> str | None:
    """What mends a bad file of a cache: while link or blob is there, no download replaces it
    (huggingface/huggingface_hub#4768). None for a path that is not in a cache."""
    blob = blob_of(path)
    if blob is None:
        return None
    return f"It is a link to the blob {blob}. Delete both and download it again: {shlex.join(['rm', path, blob])}"


def mended_in_cache(problem: CheckpointError) -> CheckpointError:
    """``problem``, with the blob behind a link and what to do about both, where a file of a cache is bad in itself."""
    if problem.tensor is None and not isinstance(problem, (MissingShardError, MissingTensorError)):
        problem.fix = delete_both(problem.path) or problem.fix
    return problem
