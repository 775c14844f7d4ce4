# SPDX-License-Identifier: Apache-2.0
"""What a file of torch.save says, as plain records: the storages it names and the tensors over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weight_readers.slices import Bounds

MAX_DIMENSIONS = 64
"""As many as torch has."""

ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""torch dtype -> bytes of an element: the dtypes that are read."""


class Dtype(NamedTuple):
    """A dtype by torch's name."""

    name: str


class StorageType(NamedTuple):
    """``torch.FloatStorage``: a kind of storage by the dtype of its elements; bytes where it has none."""

    dtype: str

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]


class Storage(NamedTuple):
    """A storage of the file, or a part of one: ``skip`` bytes of it come before, and ``nbytes`` belong to it."""

    key: str
    dtype: str
    nbytes: int
    skip: int = 0


class Other(NamedTuple):
    """A tensor that no reader yields, and what kind of tensor it is."""

    what: str


class Dense(NamedTuple):
    """A tensor over a storage. ``offset`` and ``strides`` count elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    @property
    def begin(self) -> int:
        """Its first byte, counted from the start of the storage's record in the file."""
        return self.storage.skip + self.offset * self.itemsize

    @property
    def span(self) -> int:
        """How many bytes lie between its first and its last one: fewer than its elements where it repeats some."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    def part(self, bounds: Bounds) -> Dense:
        """The part as a tensor of its own over the same storage."""
        shape = tuple(stop - start for start, stop in bounds)
        skipped = sum(start * stride for (start, _), stride in zip(bounds, self.strides, strict=True))
        return self._replace(shape=shape, offset=self.offset + skipped)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie one after the other, in order."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return math.prod(shape) == 0
        expected *= size
    return True
