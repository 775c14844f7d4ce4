# SPDX-License-Identifier: Apache-2.0
"""The headers of all files of one checkpoint, with one verdict over the whole set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weight_readers import CheckpointMeta, CheckpointProblems, FileMeta, TensorMeta
from weight_readers.errors import CheckpointError
from weight_readers_files.sets import common_folder, shared
from weight_readers_pt.header import scan_header
from weight_readers_pt.records import Dense


class PtMeta(CheckpointMeta):
    """A `CheckpointMeta` that also holds the tensors as their files describe them, in ``dense``."""

    def __init__(
        self, tensors: Mapping[str, TensorMeta], files: Sequence[FileMeta], dense: Mapping[str, Dense]
    ) -> None:
        super().__init__(tensors, files)
        self.dense = dense

    def __reduce__(self) -> tuple[Any, ...]:
        return PtMeta, (dict(self), self.files, dict(self.dense))


def read_meta(paths: Sequence[str]) -> PtMeta:
    """Check the headers of ``paths``, given in natural order.

    Raises the `CheckpointError` for what is wrong with any of them, or `CheckpointProblems` with all of it; a tensor
    name in two files is an error. ``partial`` of the error lists the tensors that could be found.
    """
    scanned = [scan_header(path) for path in paths]
    headers = [header for header, _ in scanned]
    tensors = {name: tensor for header in headers for name, tensor in header.tensors.items()}
    problems = [problem for _, found in scanned for problem in found]
    problems += shared([(header.path, header.tensors) for header in headers])
    try:
        CheckpointProblems.raise_any(problems, path=common_folder(paths))
    except CheckpointError as error:
        error.partial = tuple(tensors.values())
        raise
    dense = {name: tensor for header in headers for name, tensor in header.dense.items()}
    return PtMeta(tensors, [header.file_meta() for header in headers], dense)
