# SPDX-License-Identifier: Apache-2.0
"""Reading the header of one file: with a verdict, or with all that is wrong beside all that could be read."""

from __future__ import annotations

import os
from dataclasses import dataclass

from weight_readers.errors import CheckpointError, CheckpointProblems
from weight_readers_files import State, open_regular
from weight_readers_gguf.header._scan import Scan
from weight_readers_gguf.header._tensor_infos import TensorInfo
from weight_readers_gguf.header.metadata import Metadata


@dataclass(frozen=True, kw_only=True)
class GGUFHeader:
    """What the header of one file says.

    ``tensors`` keep the order of the header, which need not be that of the file. ``header_bytes`` is where tensor
    data begins, ``nbytes`` the size of the file. ``state`` is the one that the file was in when it was read: hold
    the file against it before reading tensors.
    """

    path: str
    version: int
    alignment: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    nbytes: int
    header_bytes: int
    state: State

    def require_unchanged(self) -> None:
        """Raise FileChangedError where the file is another by now, and the `CheckpointError` where it is gone."""
        with open_regular(self.path) as file:
            self.state.require(State.of(os.fstat(file.fileno())), path=self.path)


def read_header(path: str | os.PathLike[str]) -> GGUFHeader:
    """Read and check the header of the file at ``path``; no tensor is read, and no descriptor stays open.

    Raises the `CheckpointError` for what is wrong, or `CheckpointProblems` with all of it. A type that is not known
    is no problem of the header: see `TensorInfo.nbytes`.
    """
    header, problems = scan_header(path)
    CheckpointProblems.raise_any(problems, path=header.path)
    return header


def scan_header(path: str | os.PathLike[str]) -> tuple[GGUFHeader, tuple[CheckpointError, ...]]:
    """What the header says as far as it can be read, and all that is wrong with it; raises no `CheckpointError`."""
    scan = Scan(os.fspath(path))
    try:
        with open_regular(scan.path) as file:
            scan.read(file)
    except CheckpointError as error:
        scan.problems.append(error)
    header = GGUFHeader(
        path=scan.path,
        version=scan.version,
        alignment=scan.alignment,
        metadata=scan.metadata,
        tensors=scan.tensors,
        nbytes=scan.state.nbytes,
        header_bytes=min(scan.data_start, scan.state.nbytes),
        state=scan.state,
    )
    return header, tuple(scan.problems)
