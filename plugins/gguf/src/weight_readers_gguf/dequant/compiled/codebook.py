# SPDX-License-Identifier: Apache-2.0
"""Kernels of the types whose indices pick 4 or 8 elements at once out of a codebook: ``IQ1``, ``IQ2``, ``IQ3``.

``grid`` is the codebook ``[entries, 4 or 8]``; ``signs`` has 8 factors of 1 or -1 for each byte of signs (or, of the
types that store 7 bits of it, for each of 128 codes). Source of layouts and of the order of operations:
``dequantize_row_iq*`` of ggml-quants.c, ``block_iq*`` of ggml-common.h.
"""

from __future__ import annotations

import numpy as np

from weight_readers_gguf.dequant.compiled._bits import Bytes, Floats, half, half_of, number, u16, u32
from weight_readers_gguf.dequant.compiled._vectors import floats4, floats8, put

_HALF, _QUARTER = np.float32(0.5), np.float32(0.25)
_DELTA = np.float32(0.125)


def iq2_xxs(blocks: Bytes, out: Floats, grid: Floats, signs: Floats) -> None:
    """``d`` f16, 8 times (4 indices of 8 bits; 4 codes of signs of 7 bits and a scale of 4)."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(8):
            word = u32(blocks, i, 6 + 8 * k)
            scaled = d * (_HALF + number(word >> 28)) * _QUARTER
            for n in range(4):
                entry, code = blocks[i, 2 + 8 * k + n], (word >> (7 * n)) & 127
                put(out, i, 32 * k + 8 * n, floats8(grid, entry, 0) * scaled * floats8(signs, code, 0))


def iq2_xs(blocks: Bytes, out: Floats, grid: Floats, signs: Floats) -> None:
    """``d`` f16, 32 u16 (index of 9 bits, code of signs of 7), 8 bytes of two scales for 16 elements each."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(16):
            scale = (blocks[i, 66 + (k >> 1)] >> (4 * (k & 1))) & 15
            scaled = d * (_HALF + number(scale)) * _QUARTER
            for n in range(2):
                word = u16(blocks, i, 2 + 4 * k + 2 * n)
                put(out, i, 16 * k + 8 * n, floats8(grid, word & 511, 0) * scaled * floats8(signs, word >> 9, 0))


def iq2_s(blocks: Bytes, out: Floats, grid: Floats, signs: Floats) -> None:
    """``d`` f16, 32 bytes of indices, 32 of signs, 8 of the indices' upper 2 bits, 8 of scales as in ``IQ2_XS``."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(16):
            scale = (blocks[i, 74 + (k >> 1)] >> (4 * (k & 1))) & 15
            scaled = d * (_HALF + number(scale)) * _QUARTER
            for n in range(2):
                high = (blocks[i, 66 + (k >> 1)] >> (4 * (k & 1) + 2 * n)) & 3
                entry, sign = blocks[i, 2 + 2 * k + n] | (high << 8), blocks[i, 34 + 2 * k + n]
                put(out, i, 16 * k + 8 * n, floats8(grid, entry, 0) * scaled * floats8(signs, sign, 0))


def iq3_xxs(blocks: Bytes, out: Floats, grid: Floats, signs: Floats) -> None:
    """``d`` f16, 64 bytes of indices, 8 u32 of 4 codes of signs of 7 bits and a scale of 4."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(8):
            word = u32(blocks, i, 66 + 4 * k)
            scaled = d * (_HALF + number(word >> 28)) * _HALF
            for n in range(8):
                entry, code = blocks[i, 2 + 8 * k + n], (word >> (7 * (n >> 1))) & 127
                sign = floats4(signs, code, 4 * (n & 1))
                put(out, i, 32 * k + 4 * n, floats4(grid, entry, 0) * scaled * sign)


def iq3_s(blocks: Bytes, out: Floats, grid: Floats, signs: Floats) -> None:
    """``d`` f16, 64 bytes of indices, 8 of their ninth bits, 32 of signs, 4 of two scales for 32 elements each."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(8):
            high, scale = blocks[i, 66 + k], (blocks[i, 106 + (k >> 1)] >> (4 * (k & 1))) & 15
            scaled = d * number(1 + 2 * scale)
            for n in range(8):
                entry = blocks[i, 2 + 8 * k + n] | (((high >> n) & 1) << 8)
                sign = floats4(signs, blocks[i, 74 + 4 * k + (n >> 1)], 4 * (n & 1))
                put(out, i, 32 * k + 4 * n, floats4(grid, entry, 0) * scaled * sign)


def iq1_s(blocks: Bytes, out: Floats, grid: Floats) -> None:
    """``d`` f16, 32 bytes of indices, 8 u16 (4 times 3 upper bits, a scale of 3, the sign of the shift)."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(8):
            word = u16(blocks, i, 34 + 2 * k)
            scaled = d * number(2 * ((word >> 12) & 7) + 1)
            shift = -_DELTA if word & 0x8000 else _DELTA
            for n in range(4):
                entry = blocks[i, 2 + 4 * k + n] | (((word >> (3 * n)) & 7) << 8)
                put(out, i, 32 * k + 8 * n, (floats8(grid, entry, 0) + shift) * scaled)


def iq1_m(blocks: Bytes, out: Floats, grid: Floats) -> None:
    """32 bytes of indices, 16 of two (3 upper bits, the sign of the shift), 4 u16 of 4 scales and 4 bits of ``d``."""
    for i in range(blocks.shape[0]):
        w0, w1, w2, w3 = u16(blocks, i, 48), u16(blocks, i, 50), u16(blocks, i, 52), u16(blocks, i, 54)
        d = half_of((w0 >> 12) | ((w1 >> 8) & 0x00F0) | ((w2 >> 4) & 0x0F00) | (w3 & 0xF000))
        for k in range(16):
            scale = u16(blocks, i, 48 + 2 * (k >> 2)) >> (3 * (k & 3))
            scaled = d * number(2 * (scale & 7) + 1)
            for n in range(2):
                high = blocks[i, 32 + k] >> (4 * n)
                shift = -_DELTA if high & 8 else _DELTA
                entry = blocks[i, 2 * k + n] | ((high & 7) << 8)
                put(out, i, 16 * k + 8 * n, (floats8(grid, entry, 0) + shift) * scaled)
