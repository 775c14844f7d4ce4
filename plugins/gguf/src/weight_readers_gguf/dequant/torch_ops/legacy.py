# SPDX-License-Identifier: Apache-2.0
"""Types with one scale for a block: ``Q4_0`` to ``Q8_0``, and ``Q1_0`` and ``Q2_0``.

Layouts: the ``block_q*`` structs of ggml-common.h; formulas: ``dequantize_row_*`` of ggml-quants.c.
"""

from __future__ import annotations

from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.dequant.torch_ops.bits import NIBBLES, centred, field, half, look_up, planes, put


def q4_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: elements 0-15 in the low four bits, 16-31 in the high ones; ``d * (q - 8)``."""
    put(out, centred(planes(blocks, 2, 16, 16, NIBBLES, 0x0F), 8), half(blocks, 0))


def q4_1(blocks: Tensor, out: Tensor) -> None:
    """``half d, m; u8 qs[16]``: as ``Q4_0``; ``d * q + m``."""
    put(out, planes(blocks, 4, 16, 16, NIBBLES, 0x0F), half(blocks, 0), half(blocks, 2))


def q5_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qh[4], qs[16]``: as ``Q4_0``, with the fifth bit of element i in bit i of qh; ``d * (q - 16)``."""
    put(out, centred(_five_bits(blocks, 2), 16), half(blocks, 0))


def q5_1(blocks: Tensor, out: Tensor) -> None:
    """``half d, m; u8 qh[4], qs[16]``: as ``Q5_0``; ``d * q + m``."""
    put(out, _five_bits(blocks, 4), half(blocks, 0), half(blocks, 2))


def q8_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; i8 qs[32]``: ``d * q``."""
    put(out, field(blocks, 2, 32), half(blocks, 0))


def q1_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: element i is d where bit i is set, and -d where not."""
    put(out, look_up(constants.plus_or_minus(blocks.device), field(blocks, 2, 16)), half(blocks, 0))


def q2_0(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: four elements to a byte, the lowest bits first; ``d * (q - 1)``."""
    put(out, look_up(constants.pairs_less_one(blocks.device), field(blocks, 2, 16)), half(blocks, 0))


def _five_bits(blocks: Tensor, at: int) -> Tensor:
    fifth = look_up(constants.fifth_bits(blocks.device), field(blocks, at, 4))
    return planes(blocks, at + 4, 16, 16, NIBBLES, 0x0F).bitwise_or_(fifth)
