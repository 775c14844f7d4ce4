# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie in safetensors files, by a parser of its own: the judge shares no code with the judged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.settings import EVERY_KEY, ROWS

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I64": torch.int64, "U8": torch.uint8}


@dataclass(frozen=True)
class Entry:
    """One tensor, or some of its first dimension's rows: ``nbytes`` bytes of ``file`` from ``offset`` on."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int

    def rows(self, start: int, stop: int) -> Entry:
        row = self.nbytes // self.shape[0]
        shape = (stop - start, *self.shape[1:])
        return replace(self, shape=shape, offset=self.offset + start * row, nbytes=(stop - start) * row)

    def expected(self) -> np.ndarray:
        """The bytes as the file has them."""
        return np.fromfile(self.file, dtype=np.uint8, count=self.nbytes, offset=self.offset)


def read_entries(files: Sequence[str]) -> list[Entry]:
    """All tensors of the files, by file and offset."""
    return [entry for file in files for entry in sorted(_of_file(file), key=lambda entry: entry.offset)]


def _of_file(file: str) -> list[Entry]:
    with Path(file).open("rb") as source:
        (length,) = struct.unpack("<Q", source.read(8))
        header = json.loads(source.read(length))
    header.pop("__metadata__", None)
    entries = []
    for name, each in header.items():
        begin, end = each["data_offsets"]
        dtype, shape = _DTYPES[each["dtype"]], tuple(each["shape"])
        entries.append(Entry(name, dtype, shape, file, 8 + length + begin, end - begin))
    return entries


def some_keys(entries: Sequence[Entry]) -> list[Entry]:
    return list(entries[::EVERY_KEY])


def row_range(length: int) -> tuple[int, int]:
    """The rows that are wanted of ``length``."""
    part, parts = ROWS
    return length * part // parts, length * (part + 1) // parts


def matrix_rows(entries: Sequence[Entry]) -> list[Entry]:
    """The wanted rows of every 2-D tensor; others are not wanted at all."""
    return [entry.rows(*row_range(entry.shape[0])) for entry in entries if len(entry.shape) == 2]


SELECTIONS: dict[str, Callable[[Sequence[Entry]], list[Entry]]] = {
    "all": list,
    "keys": some_keys,
    "rows": matrix_rows,
}
