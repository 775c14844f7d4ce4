# SPDX-License-Identifier: Apache-2.0
"""The place on this machine that a reference means, or why there is none."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from weight_readers.errors import CheckpointNotFoundError, UnreadableFileError
from weight_readers.spelling import closest
from weight_readers_loader.resolve.listing import FolderListing, Listing, kind_of, natural_key
from weight_readers_loader.resolve.references import GIVE, Reference

__all__ = ["Located", "leads_to_hub", "locate"]


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
        raise UnreadableFileError("not a file or folder", path=path, found=kind, fix=GIVE)
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
    meant = _meant(path) or (path.strip() if path != path.strip() else None)
    hint = f"Did you mean {meant!r}?" if meant else None
    if (first := _first_folder(reference)) is not None:
        reason, fix = f"there is a folder {first!r} here", f"For the Hub write hf://{path.strip()}."
        hint = f"{hint} {fix}" if hint else fix
    else:
        reason = reference.reason or "a path was meant"
    what = f"no such file or folder; not tried on the Hub because {reason}"
    return CheckpointNotFoundError(what, path=path, fix=hint or GIVE)


def _meant(path: str) -> str | None:
    """The path that exists and looks most like ``path``: another spelling of it, else a close name in its folder."""
    spellings = (path.strip(), path.replace("\\", "/"), path.strip().replace("\\", "/"), path.rstrip("/"))
    for spelling in spellings:
        if spelling != path and os.path.exists(spelling):
            return spelling
    folder, name = _deepest_folder(path.strip())
    close = closest(name, _names(folder))
    return os.path.join(folder, close) if close else None


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
