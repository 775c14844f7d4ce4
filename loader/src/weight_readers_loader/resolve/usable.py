# SPDX-License-Identifier: Apache-2.0
"""Which files of a list of names can be used, and one problem for each that cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weight_readers.errors import (
    CheckpointError,
    CheckpointProblems,
    EmptyFileError,
    MissingShardError,
    UnreadableFileError,
)
from weight_readers_loader.resolve.hub.cache import fetched_again
from weight_readers_loader.resolve.listing import READABLE, Entry, LayoutFile, Listing, natural_key

__all__ = ["readable_files", "sorted_out", "usable_files"]

_UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".tmp")
_MOST = 100


def sorted_out(
    listing: Listing,
    names: Iterable[str],
    *,
    expected: str,
    instead: Callable[[str], str | None] = lambda name: None,
) -> tuple[tuple[LayoutFile, ...], tuple[CheckpointError, ...]]:
    """The files of ``names`` that can be used, in natural order, and what is wrong with the others.

    ``expected`` says why a name should be there, and ``instead`` may say what is there in place of a missing one.
    """
    entries = [(name, listing.entry(name)) for name in sorted(names, key=natural_key)]
    wrong = [(name, entry) for name, entry in entries if not _usable(entry)]
    problems = [
        _unusable(listing.path_of(name), entry) or _missing(listing, name, entry, expected, instead(name))
        for name, entry in wrong[:_MOST]
    ]
    if len(wrong) > _MOST:
        problems.append(MissingShardError(f"{len(wrong) - _MOST} more files cannot be used", path=listing.root))
    return _files(listing, (entry for _, entry in entries)), tuple(problems)


def usable_files(listing: Listing, names: Iterable[str], *, of: str, expected: str) -> tuple[LayoutFile, ...]:
    """All files of ``names``, or one error about ``of`` that lists those that are missing, unreadable or empty."""
    files, problems = sorted_out(listing, names, expected=expected)
    CheckpointProblems.raise_any(problems, path=of)
    return files


def readable_files(listing: Listing, names: Iterable[str]) -> tuple[LayoutFile, ...]:
    """Those of ``names`` that can be read and are not empty."""
    return _files(listing, (listing.entry(name) for name in names))


def _files(listing: Listing, entries: Iterable[Entry | None]) -> tuple[LayoutFile, ...]:
    usable = [entry for entry in entries if entry is not None and _usable(entry)]
    return tuple(LayoutFile(name=e.name, path=listing.path_of(e.name), size=e.size) for e in usable)


def _usable(entry: Entry | None) -> bool:
    return entry is not None and entry.fault is None and entry.size > 0


def _unusable(path: str, entry: Entry | None) -> CheckpointError | None:
    if entry is None or entry.absent:
        return None
    if entry.fault is None:
        return EmptyFileError("the file is empty", path=path, fix="Download it again.")
    return UnreadableFileError("the file cannot be read", path=path, found=entry.fault, fix=READABLE)


def _missing(listing: Listing, name: str, entry: Entry | None, expected: str, instead: str | None) -> CheckpointError:
    unfinished = [other for other in listing.names() if other.startswith(name) and other.endswith(_UNFINISHED)]
    found = [
        entry.fault if entry else None,
        f"{unfinished[0]}, a download that did not finish" if unfinished else None,
        instead,
    ]
    return MissingShardError(
        "a file of the checkpoint is not there",
        path=listing.path_of(name),
        expected=expected,
        found=next((text for text in found if text), "nothing"),
        fix=fetched_again(listing.root, None if instead else name),
    )
