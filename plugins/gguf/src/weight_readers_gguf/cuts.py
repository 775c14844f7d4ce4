# SPDX-License-Identifier: Apache-2.0
"""Which blocks hold a tensor, or a slice of one, and which of their elements are it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from weight_readers.slices import Bounds, stretches
from weight_readers_files import Range, Stripes, coalesce
from weight_readers_gguf.tensors import GGUFTensor
from weight_readers_gguf.types import TYPES


class Cut(NamedTuple):
    """``rows`` stretches of ``width`` elements, whole blocks, of which ``take`` beginning at ``skip`` are wanted.

    ``ranges`` hold their bytes in file order. ``shape`` is the logical shape of what is wanted, which lies at
    ``bounds`` of the tensor; where it ``is_within`` what is read, it is to be cut out of the whole tensor.
    """

    ranges: Sequence[Range]
    shape: tuple[int, ...]
    bounds: Bounds
    rows: int
    width: int
    skip: int
    take: int
    is_within: bool = False


def cut(tensor: GGUFTensor, bounds: Bounds) -> Cut:
    """Where the part of the tensor lies. One that begins or ends inside a block takes the whole block."""
    block = TYPES[tensor.type].block
    shape = tuple(stop - start for start, stop in bounds)
    take, begins = stretches(tensor.shape, bounds)
    if not begins:
        return Cut((), shape, bounds, 0, 0, 0, 0)
    skip = begins[0] % block
    if _steps(begins) % block:
        # Stretches begin inside blocks, each elsewhere: the whole tensor is read, and cut when it is numbers.
        whole = tuple((0, size) for size in tensor.shape)
        return cut(tensor, whole)._replace(shape=shape, bounds=bounds, is_within=True)
    width = -(-(skip + take) // block) * block
    return Cut(_ranges(tensor, begins, width), shape, bounds, len(begins), width, skip, take)


def _steps(begins: Sequence[int]) -> int:
    """The greatest number that all distances between them are multiples of; 0 where there is one."""
    if isinstance(begins, range):
        return begins.step if len(begins) > 1 else 0
    return math.gcd(*(after - begin for begin, after in pairwise(begins)))


def _ranges(tensor: GGUFTensor, begins: Sequence[int], width: int) -> Sequence[Range]:
    kind = TYPES[tensor.type]
    if isinstance(begins, range) and width < begins.step:
        blocks = range(begins[0] // kind.block, begins[-1] // kind.block + 1, begins.step // kind.block)
        return Stripes.of(blocks, width // kind.block, scale=kind.nbytes, offset=tensor.offset)
    length = width // kind.block * kind.nbytes
    return coalesce((tensor.offset + begin // kind.block * kind.nbytes, length) for begin in begins)
