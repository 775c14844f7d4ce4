# SPDX-License-Identifier: Apache-2.0
"""What the decoders are made of: fields of blocks, codes out of them, and the product with the scale.

A decoder gets ``blocks``, uint8 ``[n, nbytes]``, and ``out``, float32 ``[n, elements]``, contiguous. All of them work
alike: whole numbers are put together in words of eight bytes, in the order of the elements, become float32, and are
multiplied with the scale of their group, in ggml's order of operations, so that each result has ggml's bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants

NIBBLES = (0, 4)
PAIRS = (0, 2, 4, 6)
BITS = (0, 1, 2, 3, 4, 5, 6, 7)


def field(blocks: Tensor, at: int, nbytes: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """The bytes ``at`` ... of every block, as ``dtype``: ``[n, nbytes // itemsize]``, in memory of its own.

    A view would need every block to begin at a multiple of the item's size.
    """
    return torch.narrow_copy(blocks, 1, at, nbytes).view(dtype)


def half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte ``at`` of every block, as float32 ``[n, 1]``."""
    return field(blocks, at, 2, torch.float16).to(torch.float32)


def parts(numbers: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """``number >> shift & mask`` for every shift: ``[..., shifts]``."""
    return (numbers.unsqueeze(-1) >> constants.shifts(shifts, numbers.dtype, numbers.device)).bitwise_and_(mask)


def planes(blocks: Tensor, at: int, nbytes: int, each: int, shifts: tuple[int, ...], mask: int) -> Tensor:
    """``byte >> shift & mask`` for every byte of a field, shift by shift within every ``each`` bytes.

    Returns words of eight such codes, int64 ``[n, words]``: the codes of ``each`` bytes at the first shift, of the
    same bytes at the second, and so on.
    """
    words, masks = field(blocks, at, nbytes, torch.int64), int.from_bytes(bytes([mask]) * 8, "little")
    # The bits that come in from the next byte are those that the mask clears.
    return _in_turn([(words >> shift).bitwise_and_(masks) if shift else words & masks for shift in shifts], each)


def _in_turn(found: list[Tensor], each: int) -> Tensor:
    """``each`` bytes of the first words, of the second ones ..., and then the next ones of the first."""
    # A CPU copies element by element here, and sixteen bytes at a time are the most that an element has.
    wide = torch.complex128 if each % 16 == 0 and found[0].device.type == "cpu" else torch.int64
    rows, width = found[0].shape[0], each // wide.itemsize
    stacked = torch.stack([every.view(wide).view(rows, -1, width) for every in found], dim=2)
    return stacked.flatten(1).view(torch.int64)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]`` of a table of one dimension; ``index`` holds whole numbers of any type, ``[n, ...]``."""
    # In torch several times faster than indexing, and unlike index_select on several threads.
    rows = index.reshape(index.shape[0], -1).to(torch.int64)
    return torch.gather(table.expand(rows.shape[0], -1), 1, rows).view(index.shape)


def centred(codes: Tensor, middle: int) -> Tensor:
    """Words of unsigned codes, less ``middle``."""
    codes.view(torch.int8).sub_(middle)
    return codes


def put(out: Tensor, codes: Tensor, scale: Tensor, plus: Tensor | None = None) -> None:
    """Write ``codes * scale + plus``, each step rounded to float32, as C does without contraction.

    ``codes`` are words of int8, ``[n, ...]``; ``scale`` and ``plus`` are ``[n, groups]``.
    """
    out.copy_(codes.view(torch.int8).view(out.shape))
    groups = out.view(*scale.shape, -1)
    groups.mul_(scale.unsqueeze(2))
    if plus is not None:
        groups.add_(plus.unsqueeze(2))
