# SPDX-License-Identifier: Apache-2.0
"""What the user typed, and the place it means.

`parse_reference` judges the text alone; `locate` looks at the disk. What leads to the Hub or to an object store is
recognised here and opened elsewhere (`hub`, `stores`).
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
from weight_readers_loader.resolve.hub.names import SELECTOR, HubName, parse_short_name, parse_url
from weight_readers_loader.resolve.listing import NAME_LIMIT, FolderListing, Listing, kind_of, natural_key

__all__ = ["Located", "Reference", "leads_to_hub", "locate", "parse_reference"]

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_SELECTED = re.compile(rf"(?P<path>.+):(?P<selector>{SELECTOR})", re.DOTALL)
_HF = "Write hf://owner/name[@revision][/path][:quantization]."
_GIVE = "Give a folder, an index file (*.safetensors.index.json), or a weight file."


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A reference taken apart. ``text`` is what was typed, ``path`` the local path it may be.

    ``kind`` is ``"local"`` (and ``reason`` says why it can be nothing else), ``"repo"`` (a local path of that text
    wins), or ``"url"`` (``scheme``). ``hub`` is set where it names a repository, or something in one; ``selector`` is
    what follows the last colon, where that may be a quantization.
    """

    text: str
    kind: Literal["local", "repo", "url"]
    path: str
    reason: str | None = None
    hub: HubName | None = None
    selector: str | None = None
    scheme: str | None = None

    @property
    def names_format(self) -> str | None:
        """The format that the text alone tells: by a suffix, or by a selector, which chooses among GGUF files."""
        by_name = format_by_name(self.hub.inner or "" if self.hub else self.text.strip())
        return "gguf" if by_name is None and self.selector and self.hub else by_name


@dataclass(frozen=True, kw_only=True)
class Located:
    """A place that is there: ``listing`` shows it, and ``name`` is the one file that was meant, None for all.

    ``path`` is the place as the user named it: no link is resolved. ``selector`` chooses one model of the place.
    """

    reference: Reference
    path: str
    listing: Listing
    name: str | None = None
    selector: str | None = None


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
    return _parse_url(path) or _parse_repo(path) or _parse_local(path)


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
    if scheme != "hf":
        return Reference(text=text, kind="url", path=text, scheme=scheme, selector=_selector(text.strip()))
    found = parse_url(match["rest"])
    if isinstance(found, str):
        raise CheckpointNotFoundError(f"the reference names no model on the Hub: {found}", path=short(text), fix=_HF)
    return Reference(text=text, kind="url", path=text, scheme=scheme, hub=found, selector=found.selector)


def _parse_repo(text: str) -> Reference | None:
    words = text.strip()
    found = parse_short_name(words)
    if found is None or (found.inner is None and _why_local_only(words) is not None) or words[0] in "/.~":
        return None
    return Reference(text=text, kind="repo", path=text, hub=found, selector=found.selector)


def _parse_local(text: str) -> Reference:
    reason = _why_local_only(text.strip()) or "it does not have the form owner/name"
    return Reference(text=text, kind="local", path=text, reason=reason, selector=_selector(text))


def _selector(text: str) -> str | None:
    match = _SELECTED.fullmatch(text)
    return match["selector"] if match else None


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
    if (selected := _folder_of_selector(reference)) is not None:
        return selected
    path = os.path.expanduser(reference.path)
    mode = _mode(path, reference)
    if stat.S_ISDIR(mode):
        return Located(reference=reference, path=path, listing=FolderListing(path))
    if (kind := kind_of(mode)) is not None:
        raise UnreadableFileError("not a file or folder", path=path, found=kind, fix=_GIVE)
    folder, name = os.path.split(path)
    return Located(reference=reference, path=path, listing=FolderListing(folder), name=name)


def leads_to_hub(reference: Reference) -> bool:
    """Whether the Hub is to be asked: for ``hf://``, and for what may be a repository and is nothing here.

    Where its first part is a folder here, a text is taken for a path that was mistyped: no request leaves for it.
    """
    if reference.kind != "repo":
        return reference.scheme == "hf"
    return not (_is_here(reference.path) or _folder_of_selector(reference) or _first_folder(reference))


def _is_here(path: str) -> bool:
    return any(os.path.lexists(text) or os.path.lexists(text.rstrip("/")) for text in (path, path.strip()))


def _first_folder(reference: Reference) -> str | None:
    first = reference.path.strip().partition("/")[0]
    return first if reference.hub is not None and os.path.isdir(first) else None


def _folder_of_selector(reference: Reference) -> Located | None:
    """The folder before the selector. A path of the whole text wins, and a path object has no selector."""
    path = os.path.expanduser(reference.path)
    if reference.selector is None or os.path.lexists(path):
        return None
    folder = path.strip().removesuffix(f":{reference.selector}")
    if not os.path.isdir(folder):
        return None
    return Located(reference=reference, path=folder, listing=FolderListing(folder), selector=reference.selector)


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
    return CheckpointNotFoundError(
        f"no {reference.scheme}:// URL is opened",
        path=reference.text,
        expected="a local path, owner/name of a Hub repository, hf://, s3://, gs:// or az://",
        found=f"{reference.scheme}://",
        fix="Download it first, then give the folder.",
    )


def _not_found(path: str, reference: Reference) -> CheckpointNotFoundError:
    if os.path.islink(path.rstrip("/")):
        what, found = "the link leads nowhere", f"a symbolic link to {os.readlink(path.rstrip('/'))}"
        return CheckpointNotFoundError(what, path=path, found=found, fix="Download the file again.")
    meant = _meant(path)
    hint = f"Did you mean {meant!r}?" if meant else None
    if (first := _first_folder(reference)) is not None:
        reason, fix = f"there is a folder {first!r} here", f"For the Hub write hf://{path.strip()}."
        hint = f"{hint} {fix}" if hint else fix
    else:
        reason = reference.reason or "a path was meant"
    what = f"no such file or folder; not tried on the Hub because {reason}"
    return CheckpointNotFoundError(what, path=path, fix=hint or _GIVE)


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
