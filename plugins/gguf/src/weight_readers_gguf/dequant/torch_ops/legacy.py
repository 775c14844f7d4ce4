# SPDX-License-Identifier: Apache-2.0
"""Types with one scale for a block: ``Q4_0`` to ``Q8_0``, and ``Q1_0`` and ``Q2_0``.

Layouts: the ``block_q*`` structs of ggml-common.h; formulas: ``dequantize_row_*`` of ggml-quants.c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.dequant.torch_ops.bits import centred, field, half, look_up, pick, put, words


def q4_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: elements 0-15 in the low four bits, 16-31 in the high ones; ``d * (q - 8)``."""
    scale, quants = half(blocks, 0), words(blocks, 2, 16)
    put(out[:, :16], centred(pick(quants, 0, 0x0F), 8), scale)
    put(out[:, 16:], centred(pick(quants, 4, 0x0F), 8), scale)


def q4_1(blocks: Tensor, out: Tensor) -> None:
    """``half d, m; u8 qs[16]``: as ``Q4_0``; ``d * q + m``."""
    scale, minimum, quants = half(blocks, 0), half(blocks, 2), words(blocks, 4, 16)
    put(out[:, :16], pick(quants, 0, 0x0F), scale, minimum)
    put(out[:, 16:], pick(quants, 4, 0x0F), scale, minimum)


def q5_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qh[4], qs[16]``: as ``Q4_0``, with the fifth bit of element i in bit i of qh; ``d * (q - 16)``."""
    scale = half(blocks, 0)
    for where, codes in zip(out.split(16, dim=1), _five_bits(blocks, 2), strict=True):
        put(where, centred(codes, 16), scale)


def q5_1(blocks: Tensor, out: Tensor) -> None:
    """``half d, m; u8 qh[4], qs[16]``: as ``Q5_0``; ``d * q + m``."""
    scale, minimum = half(blocks, 0), half(blocks, 2)
    for where, codes in zip(out.split(16, dim=1), _five_bits(blocks, 4), strict=True):
        put(where, codes, scale, minimum)


def q8_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; i8 qs[32]``: ``d * q``."""
    put(out, field(blocks, 2, 32, torch.int8), half(blocks, 0))


def q1_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: element i is d where bit i is set, and -d where not."""
    put(out, look_up(constants.plus_or_minus(blocks.device), field(blocks, 2, 16)), half(blocks, 0))


def q2_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: four elements to a byte, the lowest bits first; ``d * (q - 1)``."""
    codes = look_up(constants.pairs_less_one(blocks.device), field(blocks, 2, 16))
    put(out, codes.view(torch.int8), half(blocks, 0))


def _five_bits(blocks: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """The codes of elements 0-15 and 16-31, as words ``[n, 2]``."""
    fifth = look_up(constants.fifth_bits(blocks.device), field(blocks, at, 4))
    quants = words(blocks, at + 4, 16)
    return pick(quants, 0, 0x0F).bitwise_or_(fifth[:, :2]), pick(quants, 4, 0x0F).bitwise_or_(fifth[:, 2:])
