# SPDX-License-Identifier: Apache-2.0
"""What lies at a place, whatever kind of place it is: names, sizes, and why a name cannot be used."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from weight_readers.errors import CheckpointNotFoundError, UnreadableFileError

__all__ = ["NAME_LIMIT", "READABLE", "Entry", "FolderListing", "LayoutFile", "Listing", "kind_of", "natural_key"]

READABLE = "Put the file itself there, readable by this user."
"""What mends a name that cannot be read."""

_LISTABLE = "Let this user list it (chmod u+rx as its owner), or give another folder."

NAME_LIMIT = 4096
"""The longest name or path that is looked at, in characters; Linux opens no longer one."""

_DIGITS = re.compile("([0-9]+)")
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One name of a listing. ``fault`` says why it cannot be read; ``absent`` that it leads to nothing."""

    name: str
    size: int
    fault: str | None = None
    absent: bool = False


@dataclass(frozen=True, kw_only=True)
class LayoutFile:
    """A file that can be read: its name in the listing, the path a reader opens, and its size in bytes."""

    name: str
    path: str
    size: int


class Listing(Protocol):
    """The files at one place. Names are relative to it, with ``/`` between parts; order is natural order."""

    @property
    def root(self) -> str:
        """The place as the user named it."""
        ...

    def names(self) -> tuple[str, ...]:
        """Everything at the place itself that is not a folder, in natural order, links that dangle included."""
        ...

    def folders(self) -> tuple[str, ...]:
        """The folders at the place itself, in natural order."""
        ...

    def unsafe(self) -> tuple[str, ...]:
        """Names that are no plain ones below the place. They are not among the others, and nothing reads them."""
        ...

    def below(self, name: str) -> Listing | None:
        """The folder ``name``, also one in folders below; None where there is none."""
        ...

    def entry(self, name: str) -> Entry | None:
        """What ``name`` is; None where nothing has that name. Also for names in folders below."""
        ...

    def read_bytes(self, name: str, limit: int) -> bytes:
        """The first ``limit`` bytes of ``name``, or all if it has fewer. Raises UnreadableFileError."""
        ...

    def path_of(self, name: str) -> str:
        """The name as a reader opens it and as messages show it; links are not resolved."""
        ...


def natural_key(name: str) -> tuple[object, ...]:
    """A sort key that puts ``model-2`` before ``model-10``, the same on every machine."""
    parts: list[object] = _DIGITS.split(name)
    # Length before digits compares as numbers do, and has no limit on how many digits there may be.
    parts[1::2] = [(len(d.lstrip("0")), d.lstrip("0")) for d in _DIGITS.findall(name)]
    return tuple(parts), name


def kind_of(mode: int) -> str | None:
    """What a file of ``mode`` is, in words; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    return next((word for test, word in _KINDS if test(mode)), "not a regular file")


class FolderListing:
    """The `Listing` of a local folder. The folder itself is read once, what lies below only when asked for.

    Links are followed and never resolved: an HF cache is a folder of links to files whose names say nothing.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def root(self) -> str:
        return self._root or os.curdir

    @cached_property
    def _scanned(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        try:
            with os.scandir(self.root) as entries:
                found = [(entry.name, _is_folder(entry)) for entry in entries]
        except FileNotFoundError:
            raise CheckpointNotFoundError("no such folder", path=self.root) from None
        except OSError as error:
            raise _unreadable("the folder cannot be listed", self.root, error, fix=_LISTABLE) from error
        found.sort(key=lambda item: natural_key(item[0]))
        return tuple(n for n, is_folder in found if not is_folder), tuple(n for n, is_folder in found if is_folder)

    def names(self) -> tuple[str, ...]:
        return self._scanned[0]

    def folders(self) -> tuple[str, ...]:
        return self._scanned[1]

    def unsafe(self) -> tuple[str, ...]:
        return ()

    def below(self, name: str) -> FolderListing | None:
        path = self.path_of(name)
        try:
            return FolderListing(path) if stat.S_ISDIR(os.stat(path).st_mode) else None
        except OSError:
            return None

    def entry(self, name: str) -> Entry | None:
        path = self.path_of(name)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return _dangling(path, name)
        except OSError as error:
            return Entry(name=name, size=0, fault=_reason(error))
        fault = kind_of(status.st_mode) or (None if _may_read(path) else "not readable by this user")
        return Entry(name=name, size=status.st_size, fault=fault)

    def read_bytes(self, name: str, limit: int) -> bytes:
        path, entry = self.path_of(name), self.entry(name)
        # Asked before the opening, which would wait for ever at a FIFO.
        if entry is None or entry.fault is not None:
            found = entry.fault if entry else "nothing"
            raise UnreadableFileError("the file cannot be read", path=path, found=found, fix=READABLE)
        try:
            with open(path, "rb", opener=_without_read_ahead) as file:
                return file.read(limit)
        except OSError as error:
            raise _unreadable("the file cannot be read", path, error) from error

    def path_of(self, name: str) -> str:
        return os.path.join(self._root, *name.split("/"))


def _without_read_ahead(path: str, flags: int) -> int:
    """What follows the first bytes of a weight file is megabytes that nobody may want."""
    descriptor = os.open(path, flags)
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that loops, or into a closed folder: `Listing.entry` says so of names that are read
        return False


def _dangling(path: str, name: str) -> Entry | None:
    try:
        target = os.readlink(path)
    except OSError:
        return None
    return Entry(name=name, size=0, fault=f"a symbolic link to {target}, which is not there", absent=True)


def _may_read(path: str) -> bool:
    effective = os.access in os.supports_effective_ids
    return os.access(path, os.R_OK, effective_ids=effective)


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a symbolic link that leads back to itself"
    return error.strerror or str(error)


def _unreadable(what: str, path: str, error: OSError, fix: str = READABLE) -> UnreadableFileError:
    return UnreadableFileError(what, path=path, found=_reason(error), fix=fix)
