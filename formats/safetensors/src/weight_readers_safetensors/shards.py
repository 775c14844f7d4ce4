# SPDX-License-Identifier: Apache-2.0
"""The headers of all files of one checkpoint: in natural order, with one verdict over the whole set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from weight_readers.errors import CheckpointError, DuplicateTensorError
from weight_readers.reader import CheckpointMeta, Files, TensorMeta
from weight_readers_files import natural_order, open_regular
from weight_readers_safetensors.header import Header, Opener, raise_problems, scan_header

MAX_THREADS = 8
"""Headers read at once: enough to hide the latency of a network file system, few enough for a shared disk."""

Scanned = tuple[Header, tuple[CheckpointError, ...]]


def read_headers(files: Files, open_file: Opener = open_regular) -> CheckpointMeta:
    """Read and check the headers of ``files``: every tensor, in natural shard order and header order.

    Raises the `CheckpointError` for what is wrong with any of them, or `CheckpointProblems` with all of it: a
    file given twice (also through a link) and a tensor name in two files are errors. Raises TypeError for a bare
    path and ValueError for no files.
    """
    paths = natural_order(files)
    with ThreadPoolExecutor(min(MAX_THREADS, len(paths)), thread_name_prefix="safetensors-header") as pool:
        scanned = list(pool.map(partial(scan_header, open_file=open_file), paths))
    tensors: dict[str, TensorMeta] = {}
    for header, _ in scanned:
        tensors.update(header.tensors)
    problems = [*(problem for _, found in scanned for problem in found), *_shared(scanned)]
    raise_problems(problems, path=_common_folder(paths), partial=tensors.values())
    return CheckpointMeta(tensors, [header.file_meta() for header, _ in scanned])


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
