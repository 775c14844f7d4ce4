# SPDX-License-Identifier: Apache-2.0
"""One pass over the header of one file: what it lists, and all that is wrong with it.

Format: docs/gguf.md of ggml-org/ggml, versions 2 and 3.
"""

from __future__ import annotations

import io
import struct

from weight_readers.errors import CheckpointError, DuplicateTensorError, HeaderError
from weight_readers_files import State
from weight_readers_files.content import HEAD_BYTES
from weight_readers_gguf.header import _limits as limits
from weight_readers_gguf.header._content import MAGIC, foreign_content
from weight_readers_gguf.header._layout import layout_problems
from weight_readers_gguf.header._names import checked_name
from weight_readers_gguf.header._tensor_infos import LEAST_BYTES, TensorInfo, read_info
from weight_readers_gguf.header._values import pass_value
from weight_readers_gguf.header._window import U32, Window
from weight_readers_gguf.header.metadata import Metadata

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

_COUNTS = struct.Struct("<QQ")
_LEAST_PAIR_BYTES = 14
"""A key of one letter, the type of its value, and a value of one byte."""


class Scan:
    """One pass over one file; what it found stays readable when the pass breaks off."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.state = State(0, 0)
        self.version = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.data_start = 0
        self.metadata = Metadata(path, self.state)
        self.tensors: tuple[TensorInfo, ...] = ()
        self.problems: list[CheckpointError] = []

    def read(self, file: io.FileIO) -> None:
        window = Window(file, self.path)
        self.state = window.state
        self.metadata = Metadata(self.path, self.state)
        if error := foreign_content(self.path, window.copy(0, min(HEAD_BYTES, window.nbytes))):
            raise error
        window.skip(len(MAGIC))
        self._read_version(window)
        tensors, pairs = self._read_counts(window)
        self._read_pairs(window, pairs)
        infos = self._read_infos(window, tensors)
        self._place(infos, window.position)
        window.require_unchanged()

    def _read_version(self, window: Window) -> None:
        self.version = window.number(U32)
        if self.version & 0xFFFF == 0 and self.version:
            raise HeaderError(
                "the file has the opposite byte order",
                path=self.path,
                expected="little endian",
                found=f"big endian, version {int.from_bytes(self.version.to_bytes(4, 'little'), 'big')}",
                fix="Convert it with the command gguf-convert-endian of the gguf package",
            )
        if self.version not in VERSIONS:
            raise HeaderError(
                f"GGUF version {self.version} is not read here",
                path=self.path,
                expected="version 2 or 3",
                found=self.version,
                fix="Convert the model again"
                if self.version < VERSIONS[0]
                else "Update weight-readers-gguf, or download the file again if it is damaged",
            )

    def _read_counts(self, window: Window) -> tuple[int, int]:
        window.within = "the counts of tensors and of metadata keys"
        tensors, pairs = window.take(_COUNTS)
        for count, most, what in ((tensors, limits.MAX_TENSORS, "tensors"), (pairs, limits.MAX_PAIRS, "metadata keys")):
            if count > most:
                raise HeaderError(
                    f"the header speaks of {count} {what}: its count is damaged, or beyond what this reader allows",
                    path=self.path,
                    expected=f"at most {most}",
                    found=count,
                )
        window.require(tensors * LEAST_BYTES + pairs * _LEAST_PAIR_BYTES)
        return tensors, pairs

    def _read_pairs(self, window: Window, count: int) -> None:
        for index in range(count):
            window.within = f"metadata key {index + 1} of {count}"
            key = checked_name(window, self.problems)
            self._limit_problems()
            window.within = f"the value of metadata key {key[:200]!r}"
            slot = pass_value(window)
            if key in self.metadata:
                self._add(HeaderError(f"the metadata has the key {key[:200]!r} twice", path=self.path))
            else:
                self.metadata.add(key, slot, window)

    def _read_infos(self, window: Window, count: int) -> list[TensorInfo]:
        infos: dict[str, TensorInfo] = {}
        for index in range(count):
            window.within = f"the entry of tensor {index + 1} of {count}"
            info = read_info(window, self.problems)
            if info.name in infos:
                self._add(DuplicateTensorError("the header has this name twice", path=self.path, tensor=info.name))
            infos.setdefault(info.name, info)
            self._limit_problems()
        return list(infos.values())

    def _place(self, infos: list[TensorInfo], end: int) -> None:
        """Offsets count from the first aligned byte behind the header; without an alignment they mean nothing."""
        if problem := self._alignment_problem():
            self._add(problem)
            return
        self.data_start = -(-end // self.alignment) * self.alignment if infos else end
        self.tensors = tuple(info._replace(offset=self.data_start + info.offset) for info in infos)
        for problem in layout_problems(
            self.tensors,
            path=self.path,
            data_start=self.data_start,
            alignment=self.alignment,
            nbytes=self.state.nbytes,
        ):
            self._add(problem)

    def _alignment_problem(self) -> CheckpointError | None:
        if ALIGNMENT_KEY not in self.metadata:
            return None
        type_name = self.metadata.type_name(ALIGNMENT_KEY)
        value = self.metadata[ALIGNMENT_KEY] if type_name == "UINT32" else 0
        if 0 < value <= limits.MAX_ALIGNMENT and value & (value - 1) == 0:
            self.alignment = value
            return None
        shown = self.metadata.shown(ALIGNMENT_KEY)
        return HeaderError(
            f"{ALIGNMENT_KEY} is no alignment",
            path=self.path,
            expected=f"a power of two up to {limits.MAX_ALIGNMENT}, as UINT32",
            found=shown if shown == type_name else f"{shown}, as {type_name}",
        )

    def _add(self, problem: CheckpointError) -> None:
        self.problems.append(problem)
        self._limit_problems()

    def _limit_problems(self) -> None:
        if len(self.problems) >= limits.MAX_PROBLEMS:
            what = f"more than {limits.MAX_PROBLEMS - 1} problems; the rest was not looked at"
            raise HeaderError(what, path=self.path)
