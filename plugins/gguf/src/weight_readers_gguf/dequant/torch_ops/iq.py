# SPDX-License-Identifier: Apache-2.0
"""The IQ types with codebooks: super-blocks of 256, whose entries of four or eight magnitudes have signs apart.

Layouts: the ``block_iq*`` structs of ggml-common.h; formulas: ``dequantize_row_iq*`` of ggml-quants.c. Signs are put
on the whole numbers, before the scale: that changes no bit of the product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.dequant.torch_ops.bits import field, half, look_up, put


def iq2_xxs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u16 qs[32]``: of each 32 elements four bytes of indices, four codes of signs of 7 bits, and a scale.

    ``d * (0.5 + scale) * 0.25 * entry``.
    """
    packed = field(blocks, 2, 64).view(-1, 8, 8)
    signs, scale = _signs_and_scale(packed[:, :, 4:].reshape(-1, 32))
    entries = look_up(constants.grid("IQ2_XXS", blocks.device), packed[:, :, :4])
    _put_signed(out, entries.view(-1, 32), signs, _halved(half(blocks, 0), scale, 0.25))


def iq2_xs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u16 qs[32]; u8 scales[8]``: nine bits of index and seven of signs for eight elements.

    ``d * (0.5 + scale) * 0.25 * entry``, scales of four bits and of 16 elements.
    """
    packed = field(blocks, 2, 64, torch.int16).to(torch.int32)
    signs = look_up(constants.even_signs(blocks.device), (packed >> 9) & 0x7F)
    entries = look_up(constants.grid("IQ2_XS", blocks.device), packed & 0x1FF)
    _put_signed(out, entries, signs, _halved(half(blocks, 0), _nibbles(field(blocks, 66, 8)), 0.25))


def iq2_s(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[32], signs[32], qh[8], scales[8]``: as ``IQ2_XS``, indices of ten bits, signs of eight."""
    signs = look_up(constants.signs(blocks.device), field(blocks, 34, 32))
    index = _with_high_bits(field(blocks, 2, 32), field(blocks, 66, 8), (0, 2, 4, 6), 0x03)
    entries = look_up(constants.grid("IQ2_S", blocks.device), index)
    _put_signed(out, entries, signs, _halved(half(blocks, 0), _nibbles(field(blocks, 74, 8)), 0.25))


def iq3_xxs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[64]; u32 signs_and_scales[8]``: as ``IQ2_XXS``, entries of four elements.

    ``d * (0.5 + scale) * 0.5 * entry``.
    """
    signs, scale = _signs_and_scale(field(blocks, 66, 32))
    entries = look_up(constants.grid("IQ3_XXS", blocks.device), field(blocks, 2, 64))
    _put_signed(out, entries.view(torch.int64), signs, _halved(half(blocks, 0), scale, 0.5))


def iq3_s(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[64], qh[8], signs[32], scales[4]``: indices of nine bits, entries of four elements.

    ``d * (1 + 2 * scale) * entry``, scales of four bits and of 32 elements.
    """
    signs = look_up(constants.signs(blocks.device), field(blocks, 74, 32))
    index = _with_high_bits(field(blocks, 2, 64), field(blocks, 66, 8), tuple(range(8)), 0x01)
    entries = look_up(constants.grid("IQ3_S", blocks.device), index)
    scale = half(blocks, 0) * (_nibbles(field(blocks, 106, 4)) * 2 + 1)
    _put_signed(out, entries.view(torch.int64), signs, scale)


def iq1_s(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[32]; u16 qh[8]``: indices of eleven bits; ``d * (2 * scale + 1) * (entry + delta)``.

    qh has three bits of four indices, three of the scale, and the sign of the delta, for 32 elements.
    """
    high = field(blocks, 34, 16, torch.int16).to(torch.int32)
    below = ((high & 0x8000) >> 4).view(-1, 8, 1)
    index = _with_high_bits(field(blocks, 2, 32), high, (0, 3, 6, 9), 0x07).view(-1, 8, 4) | below
    scale = half(blocks, 0) * (((high >> 12) & 0x07) * 2 + 1)
    _put_eighths(out, index.view(-1, 32), scale)


def iq1_m(blocks: Tensor, out: Tensor) -> None:
    """``u8 qs[32], qh[16], scales[8]``: as ``IQ1_S``, with deltas of 8 elements and scales of 16.

    Four bits of qh have three of an index and the sign of the delta. scales are four u16 of four scales of three
    bits, and four bits of the float16 d in the highest.
    """
    scales = field(blocks, 48, 8, torch.int16).to(torch.int32)
    parts = [(scales[:, at : at + 1] & 0xF000) >> (12 - 4 * at) for at in range(4)]
    bits = parts[0] | parts[1] | parts[2] | parts[3]
    whole = bits.to(torch.int16).view(torch.float16).to(torch.float32)
    index = _with_high_bits(field(blocks, 0, 32), field(blocks, 32, 16), (0, 4), 0x0F)
    small = torch.stack([(scales >> shift) & 0x07 for shift in (0, 3, 6, 9)], dim=2).view(-1, 16)
    _put_eighths(out, index, whole * (small * 2 + 1))


def _put_signed(out: Tensor, entries: Tensor, signs: Tensor, scale: Tensor) -> None:
    """Write the entries (int64 of eight magnitudes, ``[n, 32]``), negated where ``signs`` has 0xFF."""
    # Two's complement, byte by byte: flip, and take away -1.
    codes = (entries ^ signs).view(torch.int8).sub_(signs.view(torch.int8))
    groups = scale.shape[1]
    put(out.view(-1, groups, 256 // groups), codes, scale.unsqueeze(2))


def _put_eighths(out: Tensor, index: Tensor, scale: Tensor) -> None:
    """Write entry plus delta: both are whole eighths, and an eighth of the scale is exact."""
    codes = look_up(constants.grid_with_delta("IQ1_S", out.device), index)
    groups = scale.shape[1]
    put(out.view(-1, groups, 256 // groups), codes, (scale * 0.125).unsqueeze(2))


def _with_high_bits(low: Tensor, high: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Indices: a byte of ``low``, and above it some bits of ``high``, which has those of ``len(shifts)`` bytes."""
    high = high.to(torch.int32)
    above = torch.stack([(high >> shift) & mask for shift in shifts], dim=2)
    return above.view(low.shape).bitwise_left_shift_(8).bitwise_or_(low)


def _signs_and_scale(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight u32 of four codes of signs and a scale above: words of 0xFF where negative ``[n, 32]``, and ``[n, 8]``."""
    both = packed.view(torch.int32)
    codes = torch.stack([(both >> shift) & 0x7F for shift in (0, 7, 14, 21)], dim=2)
    return look_up(constants.even_signs(packed.device), codes).view(-1, 32), (both >> 28) & 0x0F


def _nibbles(packed: Tensor) -> Tensor:
    """Two codes of four bits to a byte, the low one first: ``[n, 2 * bytes]``."""
    return torch.stack([packed & 0x0F, packed >> 4], dim=2).view(packed.shape[0], -1)


def _halved(scale: Tensor, small: Tensor, factor: float) -> Tensor:
    # Not ``small + 0.5``, which has torch's default dtype.
    return scale * small.to(torch.float32).add_(0.5) * factor
