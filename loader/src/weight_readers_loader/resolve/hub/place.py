# SPDX-License-Identifier: Apache-2.0
"""Where a repository is read from: the Hub, or the cache where that must do; and how its files get here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from weight_readers.errors import (
    AmbiguousCheckpointError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointProblems,
    TrailingBytesError,
    TruncatedFileError,
)
from weight_readers_loader.resolve.hub.cache import HubCache, Snapshot, delete_both
from weight_readers_loader.resolve.hub.client import HubCommit, cache_of, is_offline, look_up
from weight_readers_loader.resolve.hub.faults import HubUnreachableError
from weight_readers_loader.resolve.hub.listing import HubListing
from weight_readers_loader.resolve.hub.names import HubName
from weight_readers_loader.resolve.layouts import Layout, LayoutOf
from weight_readers_loader.resolve.listing import FolderListing, LayoutFile
from weight_readers_loader.wording import counted, size, some

__all__ = ["resolve_on_hub"]

_SIDE_FILES = ("config.json", "model_index.json")
"""Downloaded along with the weights, from their folder and from the repository's own: what says which model it is."""

_OFFLINE = "HF_HUB_OFFLINE is set, so only the cache was looked at"


def resolve_on_hub(name: HubName, layout_of: LayoutOf) -> Layout:
    """The layout of a repository: by the Hub's listing with nothing downloaded yet, or by what the cache holds.

    The cache stands in where HF_HUB_OFFLINE is set, and with a notice where the Hub does not answer.
    """
    if is_offline():
        return _of_cache(name, layout_of, _OFFLINE)
    try:
        found = look_up(name)
    except HubUnreachableError as error:
        if not HubCache(cache_of(name.repo)).snapshots():
            raise
        said = f"the Hub does not answer ({error.found}), so only the cache was looked at"
        layout = _of_cache(name, layout_of, said)
        return replace(layout, notices=(*layout.notices, f"{name.repo}: {said}"))
    layout = layout_of(found.url, HubListing(found))
    said = f"revision {name.revision or 'main'} of {name.repo} is commit {found.commit}"
    notices = layout.notices if name.revision == found.commit else (*layout.notices, said)
    files = HubFiles(found)
    place = {**_place(name, found.commit), "download": files.cost(layout)}
    return replace(layout, place=place, notices=notices, remote=files)


@dataclass(frozen=True)
class HubFiles:
    """The files of a layout while they are on the Hub."""

    commit: HubCommit

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        return self.commit.read_range(self._inner(path), begin, end)

    def cost(self, layout: Layout) -> str:
        """What a load would download, in words."""
        snapshot = cache_of(self.commit.repo) / "snapshots" / self.commit.commit
        missing = [file for file in layout.files if not (snapshot / self._inner(file.path)).exists()]
        if not missing:
            return "nothing, all is in the cache"
        here = len(layout.files) - len(missing)
        cached = f"; {counted(here, 'file')} in the cache" if here else ""
        return f"{counted(len(missing), 'file')}, {size(sum(file.size for file in missing))}{cached}"

    def bring(self, layout: Layout, *, show_progress: bool = False) -> Layout:
        """The same layout in the cache: its files, its index, and what says which model it is.

        One file after another: the transfer of one is parallel in itself where the Hub's storage is Xet, and an
        interrupt ends it at once (huggingface/huggingface_hub#4730). Raises TruncatedFileError or
        TrailingBytesError for a file of the cache that has not the size that the Hub names.
        """
        here = {
            file.path: self.commit.download(self._inner(file.path), show_progress=show_progress)
            for file in layout.files
        }
        inner = self._inner(layout.root)
        for path in self._beside(inner):
            self.commit.download(path, show_progress=show_progress)
        CheckpointProblems.raise_any(_wrong_sizes(layout.files, here), path=layout.root)
        self.commit.keep_ref()
        folder = str(cache_of(self.commit.repo) / "snapshots" / self.commit.commit)
        root = os.path.join(folder, inner) if inner else folder
        index = layout.index
        return replace(
            layout,
            root=root,
            files=tuple(replace(file, path=here[file.path]) for file in layout.files),
            index=index and replace(index, path=os.path.join(root, index.name)),
            unindexed=(),
            listing=FolderListing(root),
            remote=None,
        )

    def _beside(self, folder: str) -> list[str]:
        paths = dict.fromkeys(os.path.join(where, name) for where in (folder, "") for name in _SIDE_FILES)
        return [path for path in paths if path in self.commit.sizes]

    def _inner(self, path: str) -> str:
        return path.removeprefix(self.commit.url).removeprefix("/")


def _wrong_sizes(files: Sequence[LayoutFile], here: dict[str, str]) -> Iterator[CheckpointError]:
    for file in files:
        path = here[file.path]
        found = os.stat(path).st_size
        if found != file.size:
            kind = TruncatedFileError if found < file.size else TrailingBytesError
            what = "the file in the cache ends early" if found < file.size else "the file in the cache is too long"
            said = f"{file.size} bytes, by the Hub's listing"
            yield kind(what, path=path, expected=said, found=f"{found} bytes", fix=delete_both(path))


def _of_cache(name: HubName, layout_of: LayoutOf, why: str) -> Layout:
    """The layout of the snapshot that the revision is. Where none was asked for and that one is not whole, the only
    whole one; several are an error, never a guess (raullenchai/Rapid-MLX#2616, sgl-project/sglang#34121)."""
    cache = HubCache(cache_of(name.repo))
    asked = cache.find(name.revision or "main")
    found = _attempt(asked, layout_of) if asked else _not_cached(name, cache, why)
    if asked and isinstance(found, Layout) and (name.revision or not found.problems):
        return _placed(found, name, asked)
    others = [] if name.revision else [each for each in cache.snapshots() if each != asked]
    attempts = [(each, _attempt(each, layout_of)) for each in others]
    whole = [(each, layout) for each, layout in attempts if isinstance(layout, Layout) and not layout.problems]
    if len(whole) > 1:
        raise _several(name, [each.commit for each, _ in whole], why)
    if whole:
        snapshot, layout = whole[0]
        state = f"the cached commit of main, {asked.commit}, is not whole" if asked else "no commit of main is cached"
        said = f"{name.repo}: {state}; commit {snapshot.commit} is, and is read. {why}"
        return _placed(replace(layout, notices=(*layout.notices, said)), name, snapshot)
    if asked and isinstance(found, Layout):
        return _placed(found, name, asked)
    assert isinstance(found, CheckpointError)  # noqa: S101 - for mypy: all else has returned
    raise _with_reason(found, cache, why)


def _attempt(snapshot: Snapshot, layout_of: LayoutOf) -> Layout | CheckpointError:
    try:
        return layout_of(snapshot.folder, FolderListing(snapshot.folder))
    except CheckpointError as error:
        return error


def _not_cached(name: HubName, cache: HubCache, why: str) -> CheckpointError:
    here = [*cache.refs(), *(snapshot.commit for snapshot in cache.snapshots())]
    command = ["hf", "download", name.repo, *(["--revision", name.revision] if name.revision else [])]
    return CheckpointNotFoundError(
        f"the cache holds no revision {name.revision or 'main'} of the repository",
        path=f"hf://{name.repo}",
        expected=str(cache.folder),
        found=some(here),
        fix=f"Download it where the Hub can be reached: {shlex.join(command)}",
    )


def _several(name: HubName, commits: Sequence[str], why: str) -> AmbiguousCheckpointError:
    return AmbiguousCheckpointError(
        "the cache holds several commits, and does not say which one main is",
        path=f"hf://{name.repo}",
        expected="one",
        found=some(commits),
        fix=f"Name the commit: {name.repo}@{commits[0]}. {why}.",
    )


def _with_reason(error: CheckpointError, cache: HubCache, why: str) -> CheckpointError:
    begun = cache.unfinished()
    unfinished = f"; in {cache.folder / 'blobs'} is {counted(begun, 'unfinished download')}" if begun else ""
    for problem in {id(each): each for each in (error, *error.problems)}.values():
        problem.fix = " ".join(part for part in (f"{why}{unfinished}.", problem.fix) if part)
    return error


def _placed(layout: Layout, name: HubName, snapshot: Snapshot) -> Layout:
    return replace(layout, place=_place(name, snapshot.commit))


def _place(name: HubName, commit: str) -> dict[str, str]:
    return {"repository": name.repo, "revision": name.revision or "main", "commit": commit}
