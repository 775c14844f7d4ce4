# SPDX-License-Identifier: Apache-2.0
"""The IQ types with codebooks: super-blocks of 256, whose entries of four or eight magnitudes have signs apart.

Layouts: the ``block_iq*`` structs of ggml-common.h; formulas: ``dequantize_row_iq*`` of ggml-quants.c. Signs are put
on the whole numbers, before the scale: that changes no bit of the product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.dequant.torch_ops.bits import BITS, NIBBLES, PAIRS, field, half, look_up, parts, put

SEVENS = (0, 7, 14, 21)
TRIPLES = (0, 3, 6, 9)


def iq2_xxs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u16 qs[32]``: of each 32 elements four bytes of indices, four codes of signs of 7 bits, and a scale.

    ``d * (0.5 + scale) * 0.25 * entry``.
    """
    packed = field(blocks, 2, 64).view(-1, 8, 8)
    signs, scale = _signs_and_scale(packed[:, :, 4:].reshape(-1, 32))
    entries = look_up(constants.grid("IQ2_XXS", blocks.device), packed[:, :, :4]).flatten(1)
    put(out, _signed(entries, signs), _halved(half(blocks, 0), scale, 0.25))


def iq2_xs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u16 qs[32]; u8 scales[8]``: nine bits of index and seven of signs for eight elements.

    ``d * (0.5 + scale) * 0.25 * entry``, scales of four bits and of 16 elements.
    """
    packed = field(blocks, 2, 64, torch.int16)
    signs = look_up(constants.even_signs(blocks.device), (packed >> 9) & 0x7F)
    entries = look_up(constants.grid("IQ2_XS", blocks.device), packed & 0x1FF)
    put(out, _signed(entries, signs), _halved(half(blocks, 0), _nibbles(blocks, 66, 8), 0.25))


def iq2_s(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[32], signs[32], qh[8], scales[8]``: as ``IQ2_XS``, indices of ten bits, signs of eight."""
    signs = look_up(constants.signs(blocks.device), field(blocks, 34, 32))
    index = _index(field(blocks, 2, 32), parts(field(blocks, 66, 8), PAIRS, 0x03))
    entries = look_up(constants.grid("IQ2_S", blocks.device), index)
    put(out, _signed(entries, signs), _halved(half(blocks, 0), _nibbles(blocks, 74, 8), 0.25))


def iq3_xxs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[64]; u32 signs_and_scales[8]``: as ``IQ2_XXS``, entries of four elements.

    ``d * (0.5 + scale) * 0.5 * entry``.
    """
    signs, scale = _signs_and_scale(field(blocks, 66, 32))
    entries = look_up(constants.grid("IQ3_XXS", blocks.device), field(blocks, 2, 64))
    put(out, _signed(entries.view(torch.int64), signs), _halved(half(blocks, 0), scale, 0.5))


def iq3_s(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[64], qh[8], signs[32], scales[4]``: indices of nine bits, entries of four elements.

    ``d * (1 + 2 * scale) * entry``, scales of four bits and of 32 elements.
    """
    signs = look_up(constants.signs(blocks.device), field(blocks, 74, 32))
    index = _index(field(blocks, 2, 64), parts(field(blocks, 66, 8), BITS, 0x01))
    entries = look_up(constants.grid("IQ3_S", blocks.device), index)
    put(out, _signed(entries.view(torch.int64), signs), _odd(half(blocks, 0), _nibbles(blocks, 106, 4)))


def iq1_s(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[32]; u16 qh[8]``: indices of eleven bits; ``d * (2 * scale + 1) * (entry + delta)``.

    qh has three bits of four indices, three of the scale, and the sign of the delta, for 32 elements.
    """
    high = field(blocks, 34, 16, torch.int16)
    above = parts(high, TRIPLES, 0x07) | ((high >> 12) & 0x08).unsqueeze(2)
    _put_eighths(out, _index(field(blocks, 2, 32), above), _odd(half(blocks, 0), (high >> 12) & 0x07))


def iq1_m(blocks: Tensor, out: Tensor) -> None:
    """``u8 qs[32], qh[16], scales[8]``: as ``IQ1_S``, with deltas of 8 elements and scales of 16.

    Four bits of qh have three of an index and the sign of the delta. scales are four u16 of four scales of three
    bits, and four bits of the float16 d in the highest.
    """
    scales = field(blocks, 48, 8, torch.int16)
    nibbles = parts(field(blocks, 48, 8), NIBBLES, 0x0F).view(-1, 4, 4)[:, :, 3]
    halves = (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).contiguous().view(torch.float16)
    scale = _odd(halves.to(torch.float32), parts(scales, TRIPLES, 0x07).flatten(1))
    _put_eighths(out, _index(field(blocks, 0, 32), parts(field(blocks, 32, 16), NIBBLES, 0x0F)), scale)


def _signed(entries: Tensor, signs: Tensor) -> Tensor:
    """Words of magnitudes, negated where the words ``signs`` have 0xFF: in two's complement, flip and take away -1."""
    return (entries ^ signs).view(torch.int8).sub_(signs.view(torch.int8))


def _put_eighths(out: Tensor, index: Tensor, scale: Tensor) -> None:
    """Write entry plus delta: both are whole eighths, and an eighth of the scale is exact."""
    put(out, look_up(constants.grid_with_delta("IQ1_S", out.device), index), scale * 0.125)


def _index(low: Tensor, high: Tensor) -> Tensor:
    """Bytes ``[n, k]`` and the bits above them, of as many elements: int16 ``[n, k]``."""
    return high.to(torch.int16).view(low.shape).bitwise_left_shift_(8).bitwise_or_(low)


def _signs_and_scale(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight u32 of four codes of signs and a scale above: words of 0xFF where negative ``[n, 32]``, and ``[n, 8]``."""
    both = packed.view(torch.int32)
    signs = look_up(constants.even_signs(packed.device), parts(both, SEVENS, 0x7F))
    return signs.flatten(1), (both >> 28) & 0x0F


def _nibbles(blocks: Tensor, at: int, nbytes: int) -> Tensor:
    """Codes of four bits, the low one of a byte first: ``[n, 2 * nbytes]``."""
    return parts(field(blocks, at, nbytes), NIBBLES, 0x0F).flatten(1)


def _halved(scale: Tensor, small: Tensor, factor: float) -> Tensor:
    # Not ``small + 0.5``, which has torch's default dtype.
    return scale * small.to(torch.float32).add_(0.5) * factor


def _odd(scale: Tensor, small: Tensor) -> Tensor:
    return scale * (small * 2 + 1)
