# SPDX-License-Identifier: Apache-2.0
"""The headers of all files of one checkpoint: in natural order, with one verdict over the whole set."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from weight_readers.errors import CheckpointError
from weight_readers.reader import CheckpointMeta, Files
from weight_readers.tensors import TensorMeta, TensorTable
from weight_readers_files import natural_order, open_regular
from weight_readers_files.sets import common_folder, shared
from weight_readers_files.threads import Pool
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
    with Pool(min(MAX_THREADS, len(paths)), thread_name_prefix="safetensors-header") as pool:
        scanned = list(pool.map(partial(scan_header, open_file=open_file), paths))
    tables = [(header.path, header.tensors) for header, _ in scanned]
    tensors = TensorTable.joined(table for _, table in tables)
    # Names are compared one by one only where some are in two files: there may be 100 000.
    twice = tensors.has_twins
    problems = [
        *(problem for _, found in scanned for problem in found),
        *shared((path, table.names if twice else ()) for path, table in tables),
    ]
    raise_problems(problems, path=common_folder(paths), partial=_distinct(tensors))
    return CheckpointMeta(tensors, [header.file_meta() for header, _ in scanned])


def _distinct(tensors: TensorTable) -> Iterator[TensorMeta]:
    """Of tensors of one name the last, where the first was."""
    yield from dict(tensors.items()).values()
