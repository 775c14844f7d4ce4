# SPDX-License-Identifier: Apache-2.0
"""The files of one checkpoint together: what two of them have in common and must not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from weight_readers.errors import CheckpointError, DuplicateTensorError

Named = tuple[str, Iterable[str]]
"""A path, and the names of the tensors in that file."""


def shared(files: Iterable[Named]) -> Iterator[CheckpointError]:
    """A problem for each file that is given twice (also through a link), and for each pair that shares names."""
    seen: dict[tuple[int, int] | str, str] = {}
    owners: dict[str, str] = {}
    for path, names in files:
        identity = _identity(path)
        if identity in seen:
            yield _same_file(seen[identity], path)
        else:
            seen[identity] = path
            yield from _same_names(owners, path, names)


def _same_names(owners: dict[str, str], path: str, names: Iterable[str]) -> Iterator[CheckpointError]:
    """One problem for each earlier file that shares names, however many they are."""
    common: dict[str, list[str]] = {}
    for name in names:
        owner = owners.setdefault(name, path)
        if owner != path:
            common.setdefault(owner, []).append(name)
    for owner, both in common.items():
        more = f" (and {len(both) - 1} more of its tensors)" if len(both) > 1 else ""
        yield DuplicateTensorError(
            f"also in {owner}{more}",
            path=path,
            tensor=both[0],
            fix="Two checkpoints lie in one folder? Give the files of one, or its index",
        )


def _same_file(first: str, again: str) -> CheckpointError:
    how = "given twice" if first == again else f"the same file as {first}"
    return DuplicateTensorError(f"this file is {how}", path=again, found=first, fix="Give each file once")


def _identity(path: str) -> tuple[int, int] | str:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        # It is reported as missing; only the same words twice are the same.
        return path
    return status.st_dev, status.st_ino


def common_folder(paths: Sequence[str]) -> str:
    """The folder that errors about all the files name."""
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths]) or os.curdir
    except ValueError:
        # Relative and absolute paths mixed, or two drives.
        return paths[0]
