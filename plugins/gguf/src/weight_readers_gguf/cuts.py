# SPDX-License-Identifier: Apache-2.0
"""Which blocks hold a tensor, or a slice of one, and which of their elements are it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weight_readers import TensorSlice
from weight_readers_files import Range
from weight_readers_gguf.tensors import GGUFTensor
from weight_readers_gguf.types import TYPES


class Cut(NamedTuple):
    """``rows`` stretches of ``width`` elements, whole blocks, of which ``take`` beginning at ``skip`` are wanted.

    ``ranges`` hold their bytes in file order, and ``pitch`` bytes lie from one stretch to the next. ``shape`` is the
    logical shape of what is wanted; where ``of`` is not None it is to be cut out of a tensor of that shape.
    """

    ranges: Sequence[Range]
    shape: tuple[int, ...]
    rows: int
    width: int
    skip: int
    take: int
    pitch: int
    of: tuple[int, ...] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it holds nothing but what is wanted."""
        return self.take == self.width and self.of is None


def cut(tensor: GGUFTensor, part: TensorSlice | None) -> Cut:
    """Where ``part`` of the tensor lies; None is the whole. A slice that ends inside a block takes the whole block.

    Raises IndexError for a dimension that the tensor lacks.
    """
    kind = TYPES[tensor.type]
    total = math.prod(tensor.shape)
    if part is None:
        return _cut(tensor, tensor.shape, 1, total, 0, total, total)
    try:
        dim, start, stop = part.resolve(tensor.shape)
    except IndexError as error:
        raise IndexError(f"{error}: tensor {tensor.name!r} in {tensor.file}") from None
    shape = (*tensor.shape[:dim], stop - start, *tensor.shape[dim + 1 :])
    inner, outer = math.prod(tensor.shape[dim + 1 :]), math.prod(tensor.shape[:dim])
    step, first, take = tensor.shape[dim] * inner, start * inner, (stop - start) * inner
    begin = first - first % kind.block
    width = -(-(first + take - begin) // kind.block) * kind.block
    if take * outer == 0:
        return Cut((), shape, outer, width, first - begin, take, 0)
    if outer > 1 and step % kind.block:
        # Stretches begin inside blocks, each elsewhere: the whole tensor is read, and cut when it is numbers.
        return _cut(tensor, shape, 1, total, 0, total, total)._replace(of=tensor.shape)
    return _cut(tensor, shape, outer, width, first - begin, take, step, begin)


def _cut(
    tensor: GGUFTensor, shape: tuple[int, ...], rows: int, width: int, skip: int, take: int, step: int, begin: int = 0
) -> Cut:
    kind = TYPES[tensor.type]
    pitch, length = step // kind.block * kind.nbytes, width // kind.block * kind.nbytes
    offset = tensor.offset + begin // kind.block * kind.nbytes
    if length == pitch:
        return Cut(((offset, length * rows),), shape, rows, width, skip, take, pitch)
    return Cut([(offset + row * pitch, length) for row in range(rows)], shape, rows, width, skip, take, pitch)
