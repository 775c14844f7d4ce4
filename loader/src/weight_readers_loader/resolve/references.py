# SPDX-License-Identifier: Apache-2.0
"""What the user typed, and the place it means.

`parse_reference` judges the text alone; `locate` looks at the disk. Only local paths are opened: the other shapes
are recognised so that their refusal can say what they are.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from dataclasses import dataclass
from typing import Literal

from weight_readers.errors import CheckpointNotFoundError, UnreadableFileError
from weight_readers_loader.arguments import short
from weight_readers_loader.resolve.formats import format_by_name
from weight_readers_loader.resolve.listing import NAME_LIMIT, FolderListing, Listing, kind_of, natural_key

__all__ = ["Located", "Reference", "locate", "parse_reference"]

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_REPO = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?(?::(?P<selector>[\w.-]+))?")
_GIVE = "Give a folder, an index file (*.safetensors.index.json), or a weight file."


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A reference taken apart. ``text`` is what was typed, ``path`` the local path it may be.

    ``kind`` is ``"local"`` (and ``reason`` says why it can be nothing else), ``"repo"`` (``repo``, ``revision`` and
    ``selector`` of ``owner/name@revision:selector``; a local path of that text wins), or ``"url"`` (``scheme``).
    """

    text: str
    kind: Literal["local", "repo", "url"]
    path: str
    reason: str | None = None
    repo: str | None = None
    revision: str | None = None
    selector: str | None = None
    scheme: str | None = None


@dataclass(frozen=True, kw_only=True)
class Located:
    """A place that is there: ``listing`` shows it, and ``name`` is the one file that was meant, None for all.

    ``path`` is the place as the user named it: no link is resolved.
    """

    reference: Reference
    path: str
    listing: Listing
    name: str | None = None


def parse_reference(text: str | os.PathLike[str]) -> Reference:
    """Take a reference apart without any I/O.

    Raises TypeError for what is no text, CheckpointNotFoundError for a text that can name nothing.
    """
    path = os.fspath(text) if isinstance(text, os.PathLike) else text
    if not isinstance(path, str):
        raise TypeError(f"a reference is a str or an os.PathLike of str, not {short(repr(text))}")
    if (fault := _fault(path)) is not None:
        raise CheckpointNotFoundError(f"the reference {fault}", path=short(ascii(path)), fix=_GIVE)
    if not isinstance(text, str):
        return Reference(text=path, kind="local", path=path, reason="it was given as a path object")
    return _parse_url(path) or _parse_repo(path) or Reference(text=path, kind="local", path=path, reason=_why(path))


def _fault(path: str) -> str | None:
    """Why ``path`` can name nothing on any disk."""
    if not path.strip():
        return "is empty"
    if "\0" in path:
        return "holds a NUL character"
    if len(path) > NAME_LIMIT:
        return f"is longer than {NAME_LIMIT} characters"
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return None


def _parse_url(text: str) -> Reference | None:
    match = _SCHEME.fullmatch(text.strip())
    if match is None:
        return None
    scheme = match["scheme"].lower()
    repo = _REPO.fullmatch(match["rest"]) if scheme == "hf" else None
    return Reference(text=text, kind="url", path=text, scheme=scheme, **(repo.groupdict() if repo else {}))


def _parse_repo(text: str) -> Reference | None:
    words = text.strip()
    match = _REPO.fullmatch(words)
    if _why_local_only(words) is not None or match is None:
        return None
    return Reference(text=text, kind="repo", path=text, **match.groupdict())


def _why(text: str) -> str:
    return _why_local_only(text.strip()) or "it does not have the form owner/name"


def _why_local_only(text: str) -> str | None:
    """Why ``text`` can be no repo id (vllm-project/vllm#33545). A dot proves nothing: ``Qwen/Qwen2.5-0.5B``."""
    before_revision = text.partition("@")[0]
    if text[0] in "/.~":
        return f"it starts with {text[0]!r}"
    if "\\" in text:
        return "it holds a backslash"
    if format_by_name(text) is not None or text.endswith(".json"):
        return f"it ends in {os.path.splitext(text)[1]!r} as a file does"
    if before_revision.count("/") > 1:
        return "it has more than one slash"
    return None


def locate(reference: Reference) -> Located:
    """Find the place on this machine.

    Raises CheckpointNotFoundError with the closest name that is there, or where the reference is no local path;
    UnreadableFileError for a place that cannot be read or is neither file nor folder.
    """
    if reference.kind == "url":
        raise _remote(reference)
    path = os.path.expanduser(reference.path)
    mode = _mode(path, reference)
    if stat.S_ISDIR(mode):
        return Located(reference=reference, path=path, listing=FolderListing(path))
    if (kind := kind_of(mode)) is not None:
        raise UnreadableFileError("not a file or folder", path=path, found=kind, fix=_GIVE)
    folder, name = os.path.split(path)
    return Located(reference=reference, path=path, listing=FolderListing(folder), name=name)


def _mode(path: str, reference: Reference) -> int:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(path, reference) from None
    except OSError as error:
        raise UnreadableFileError(
            "the path cannot be looked at", path=path, found=error.strerror, fix="Check the path and its permissions."
        ) from error


def _remote(reference: Reference) -> CheckpointNotFoundError:
    what = "Hub reference" if reference.scheme == "hf" else f"{reference.scheme}:// URL"
    command = f"hf download {reference.repo or 'OWNER/NAME'} --local-dir DIR" if reference.scheme == "hf" else None
    return CheckpointNotFoundError(
        f"this version of the loader opens local paths only, and the reference is a {what}",
        path=reference.text,
        expected="a local folder or file",
        found=f"{reference.scheme}://",
        fix="Download it first" + (f" ({command})" if command else "") + ", then give the folder.",
    )


def _not_found(path: str, reference: Reference) -> CheckpointNotFoundError:
    if os.path.islink(path.rstrip("/")):
        what, found = "the link leads nowhere", f"a symbolic link to {os.readlink(path.rstrip('/'))}"
        return CheckpointNotFoundError(what, path=path, found=found, fix="Download the file again.")
    meant = _meant(path)
    hint = f"Did you mean {meant!r}?" if meant else None
    if reference.kind == "local":
        what = f"no such file or folder; not tried on the Hub because {reference.reason}"
        return CheckpointNotFoundError(what, path=path, fix=hint or _GIVE)
    download = f"A Hub repository is downloaded first (hf download {reference.repo or path.strip()} --local-dir DIR)"
    return CheckpointNotFoundError(
        "no such file or folder; it may name a Hub repository, and this version of the loader opens local paths only",
        path=path,
        fix=(f"{hint} " if hint else "") + f"{download}, then its folder is given.",
    )


def _meant(path: str) -> str | None:
    """The path that exists and looks most like ``path``: another spelling of it, else a close name in its folder."""
    spellings = (path.strip(), path.replace("\\", "/"), path.strip().replace("\\", "/"), path.rstrip("/"))
    for spelling in spellings:
        if spelling != path and os.path.exists(spelling):
            return spelling
    folder, name = _deepest_folder(path.strip())
    matches = difflib.get_close_matches(name, _names(folder), n=1)
    return os.path.join(folder, matches[0]) if matches else None


def _deepest_folder(path: str) -> tuple[str, str]:
    """The longest leading part of ``path`` that is a folder, and the name that follows and is not there."""
    folder, name = os.path.split(path.rstrip("/"))
    while folder and not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder, name = os.path.split(folder)
    return folder, name


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder or os.curdir), key=natural_key)
    except OSError:
        return []
