# SPDX-License-Identifier: Apache-2.0
"""The headers of all files of one checkpoint: in natural order, with one verdict over the whole set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from weight_readers.errors import CheckpointError, DuplicateTensorError
from weight_readers.reader import CheckpointMeta, Files, TensorMeta
from weight_readers_safetensors.header import Header, raise_problems, scan_header

MAX_THREADS = 8
"""Headers read at once: enough to hide the latency of a network file system, few enough for a shared disk."""

Scanned = tuple[Header, tuple[CheckpointError, ...]]
NaturalKey = tuple[tuple[str | tuple[int, str], ...], str]


def natural_key(name: str | os.PathLike[str]) -> NaturalKey:
    """Sort key that puts ``model-2`` before ``model-10``; any name has one, and no two names share one.

    Depends on the name alone, so the order is the same on every rank.
    """
    text = os.fspath(name)
    # Odd places are runs of digits, compared by length and then as text: no conversion, no limit on their length.
    parts = re.split(r"([0-9]+)", text)
    return tuple(_number(part) if place % 2 else part for place, part in enumerate(parts)), text


def _number(digits: str) -> tuple[int, str]:
    significant = digits.lstrip("0")
    return len(significant), significant


def read_headers(files: Files) -> CheckpointMeta:
    """Read and check the headers of ``files``: every tensor, in natural shard order and header order.

    Raises the `CheckpointError` for what is wrong with any of them, or `CheckpointProblems` with all of it: a
    file given twice (also through a link) and a tensor name in two files are errors. Raises TypeError for a bare
    path and ValueError for no files.
    """
    paths = natural_order(files)
    with ThreadPoolExecutor(min(MAX_THREADS, len(paths)), thread_name_prefix="safetensors-header") as pool:
        scanned = list(pool.map(scan_header, paths))
    tensors: dict[str, TensorMeta] = {}
    for header, _ in scanned:
        tensors.update(header.tensors)
    problems = [*(problem for _, found in scanned for problem in found), *_shared(scanned)]
    raise_problems(problems, path=_common_folder(paths), partial=tensors.values())
    return CheckpointMeta(tensors, [header.file_meta() for header, _ in scanned])


def natural_order(files: Files) -> list[str]:
    """The paths in natural order. Raises TypeError for a bare path, which is a sequence of letters too."""
    if isinstance(files, (str, bytes, os.PathLike)):
        raise TypeError(f"files must be a sequence of paths, not the single path {files!r}: write [{files!r}]")
    paths = sorted((os.fspath(file) for file in files), key=natural_key)
    if not paths:
        raise ValueError("files is empty: there is no checkpoint to read")
    return paths


def _shared(scanned: Sequence[Scanned]) -> Iterator[CheckpointError]:
    """What two files have in common and must not."""
    seen: dict[tuple[int, int] | str, str] = {}
    owners: dict[str, str] = {}
    for header, _ in scanned:
        identity = _identity(header.path)
        if identity in seen:
            yield _same_file(seen[identity], header.path)
        else:
            seen[identity] = header.path
            yield from _same_names(owners, header)


def _same_names(owners: dict[str, str], header: Header) -> Iterator[CheckpointError]:
    """One problem for each earlier file that shares names, however many they are."""
    shared: dict[str, list[str]] = {}
    for name in header.tensors:
        owner = owners.setdefault(name, header.path)
        if owner != header.path:
            shared.setdefault(owner, []).append(name)
    for owner, names in shared.items():
        more = f" (and {len(names) - 1} more of its tensors)" if len(names) > 1 else ""
        yield DuplicateTensorError(
            f"also in {owner}{more}",
            path=header.path,
            tensor=names[0],
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


def _common_folder(paths: Sequence[str]) -> str:
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths]) or os.curdir
    except ValueError:
        # Relative and absolute paths mixed, or two drives.
        return paths[0]
