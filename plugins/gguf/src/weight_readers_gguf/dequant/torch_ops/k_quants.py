# SPDX-License-Identifier: Apache-2.0
"""The K types: super-blocks of 256 elements, whose groups of 16 or 32 have a small whole number as their scale.

Layouts: the ``block_q*_K`` structs of ggml-common.h; formulas: ``dequantize_row_q*_K`` of ggml-quants.c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops.bits import BITS, NIBBLES, PAIRS, centred, field, half, planes, put


def q2_k(blocks: Tensor, out: Tensor) -> None:
    """``u8 scales[16], qs[64]; half d, dmin``: ``d * (scale & 15) * q - dmin * (scale >> 4)``, scales of 16 elements.

    32 bytes of qs hold 128 elements: 32 in their lowest two bits, the next 32 in the next two, and so on.
    """
    scales = field(blocks, 0, 16)
    minimum = (half(blocks, 82) * (scales >> 4)).neg_()
    put(out, planes(blocks, 16, 64, 32, PAIRS, 0x03), half(blocks, 80) * (scales & 0x0F), minimum)


def q3_k(blocks: Tensor, out: Tensor) -> None:
    """``u8 hmask[32], qs[64], scales[12]; half d``: ``d * (scale - 32) * (q - 4)``, scales of 16 elements.

    qs as in ``Q2_K``; the third bit of element i is bit ``i / 32`` of ``hmask[i % 32]``.
    """
    third = planes(blocks, 0, 32, 32, BITS, 0x01).bitwise_left_shift_(2)
    codes = planes(blocks, 32, 64, 32, PAIRS, 0x03).bitwise_or_(third)
    put(out, centred(codes, 4), half(blocks, 108) * (_sixteen_scales(field(blocks, 96, 12)) - 32))


def q4_k(blocks: Tensor, out: Tensor) -> None:
    """``half d, dmin; u8 scales[12], qs[128]``: ``d * scale * q - dmin * minimum``, both of 32 elements.

    32 bytes of qs hold 64 elements: 32 in their low four bits, then 32 in the high ones.
    """
    put(out, planes(blocks, 16, 128, 32, NIBBLES, 0x0F), *_scales_and_minimums(blocks))


def q5_k(blocks: Tensor, out: Tensor) -> None:
    """``half d, dmin; u8 scales[12], qh[32], qs[128]``: as ``Q4_K``, with a fifth bit.

    That of element i is bit ``i / 32`` of ``qh[i % 32]``.
    """
    fifth = planes(blocks, 16, 32, 32, BITS, 0x01).bitwise_left_shift_(4)
    put(out, planes(blocks, 48, 128, 32, NIBBLES, 0x0F).bitwise_or_(fifth), *_scales_and_minimums(blocks))


def q6_k(blocks: Tensor, out: Tensor) -> None:
    """``u8 ql[128], qh[64]; i8 scales[16]; half d``: ``d * scale * (q - 32)``, scales of 16 elements.

    64 bytes of ql and 32 of qh hold 128 elements: the low four bits of ql 64 of them, then the high four bits;
    32 bytes of qh hold the two bits above of 32 elements in their lowest two bits, and so on.
    """
    above = planes(blocks, 128, 64, 32, PAIRS, 0x03).bitwise_left_shift_(4)
    codes = planes(blocks, 0, 128, 64, NIBBLES, 0x0F).bitwise_or_(above)
    put(out, centred(codes, 32), half(blocks, 208) * field(blocks, 192, 16, torch.int8))


def _scales_and_minimums(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``Q4_K`` and ``Q5_K``, times their float16: ``[n, 8]`` each, the minimums negated.

    Of six bits each: 0-3 in bytes 0-3 (minimums 4-7), 4-7 in the low (high) four bits of bytes 8-11, and their two
    bits above in the highest of bytes 0-3 (4-7). Source: ``get_scale_min_k4``.
    """
    packed = field(blocks, 4, 12)
    first, rest = packed[:, :8], packed[:, 8:]
    last = torch.cat([rest & 0x0F, rest >> 4], dim=1) | ((first >> 2) & 0x30)
    small = torch.cat([(first & 0x3F).view(-1, 2, 4), last.view(-1, 2, 4)], dim=2)
    halves = field(blocks, 0, 4, torch.float16).to(torch.float32).unsqueeze(2)
    scale, minimum = (halves * small).unbind(1)
    return scale, minimum.neg()


def _sixteen_scales(packed: Tensor) -> Tensor:
    """Of ``Q3_K``, of six bits each: int8 ``[n, 16]``.

    0-7 have their low four bits in the low ones of bytes 0-7, 8-15 in the high ones; scale i has the two bits above
    in byte ``8 + i % 4``, from bit ``i / 4 * 2`` on.
    """
    low, high = packed[:, :8], packed[:, 8:]
    above = torch.cat([high, high >> 2, high >> 4, high >> 6], dim=1) & 0x03
    return (torch.cat([low & 0x0F, low >> 4], dim=1) | (above << 4)).view(torch.int8)
