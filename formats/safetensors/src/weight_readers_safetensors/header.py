# SPDX-License-Identifier: Apache-2.0
"""The header of one safetensors file: parsed, and held against every rule of the format.

Format: 8 bytes length *n* (unsigned, little endian), *n* bytes of JSON that begin with ``{`` and may be padded
with spaces, then the data section (the README of huggingface/safetensors, "Format"). Where the rules here are
stricter than the library's, docs/decisions/0002-safetensors-verdicts.md says why.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

from weight_readers.errors import CheckpointError, CheckpointProblems
from weight_readers.reader import FileMeta
from weight_readers.tensors import TensorMeta, TensorTable
from weight_readers_files import open_regular
from weight_readers_safetensors._scan import Scan

Opener = Callable[[str], AbstractContextManager[io.RawIOBase]]
"""Opens what is at a path for reading, or raises the `CheckpointError` that says why it cannot."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the header of one file says.

    ``header_bytes`` counts the length field too, so it is where the data section begins. ``tensors`` keeps the
    order of the header; ``metadata`` is empty where the file has none.
    """

    path: str
    nbytes: int
    header_bytes: int
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: TensorTable = field(default_factory=partial(TensorTable, {}))

    def file_meta(self) -> FileMeta:
        """The file as `CheckpointMeta.files` lists it."""
        return FileMeta(
            path=self.path,
            format="safetensors",
            nbytes=self.nbytes,
            header_bytes=self.header_bytes,
            metadata=self.metadata,
        )


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of the file at ``path``; no byte of the data section is read.

    Raises the `CheckpointError` for what is wrong, or `CheckpointProblems` with all of it; ``.partial`` of the
    error lists the tensors that could be read.
    """
    header, problems = scan_header(path)
    raise_problems(problems, path=header.path, partial=header.tensors.values())
    return header


def scan_header(
    path: str | os.PathLike[str], open_file: Opener = open_regular
) -> tuple[Header, tuple[CheckpointError, ...]]:
    """What the header says as far as it can be read, and all that is wrong with it; raises no `CheckpointError`.

    A tensor of a dtype that safetensors does not have is listed with the dtype ``unknown``. ``open_file`` is for
    paths that are no files of this machine.
    """
    scan = Scan(os.fspath(path))
    try:
        with open_file(scan.path) as file:
            scan.read(file)
    except CheckpointError as error:
        scan.problems.append(error)
    header = Header(
        path=scan.path,
        nbytes=scan.nbytes,
        header_bytes=scan.data_start,
        metadata=scan.metadata,
        tensors=scan.tensors,
    )
    return header, tuple(scan.problems)


def raise_problems(problems: Iterable[CheckpointError], *, path: str, partial: Iterable[TensorMeta]) -> None:
    """Raise the problems, if there are any, with ``partial`` as the listing of what could be read."""
    try:
        CheckpointProblems.raise_any(problems, path=path)
    except CheckpointError as error:
        error.partial = tuple(partial)
        raise
