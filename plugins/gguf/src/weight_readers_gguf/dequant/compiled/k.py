# SPDX-License-Identifier: Apache-2.0
"""Kernels of the K types: super-blocks of 256 elements with quantized scales.

Source of layouts and of the order of operations: ``dequantize_row_q*_K`` of ggml-quants.c, ``block_q*_K`` of
ggml-common.h.
"""

from __future__ import annotations

from typing import Any

from weight_readers_gguf.dequant.compiled._bits import Bytes, Floats, half, number, signed


def q2_k(blocks: Bytes, out: Floats) -> None:
    """16 bytes of (minimum, scale) for 16 elements each, 64 bytes of four 2-bit numbers, ``d``, ``dmin`` f16."""
    for i in range(blocks.shape[0]):
        d, dmin = half(blocks, i, 80), half(blocks, i, 82)
        for part in range(4):
            # The part-th 16 bytes of numbers: half a shift of one of the two 128s.
            scale, at = 8 * (part >> 1) + (part & 1), 128 * (part >> 1) + 16 * (part & 1)
            s0, s1, s2, s3 = blocks[i, scale], blocks[i, scale + 2], blocks[i, scale + 4], blocks[i, scale + 6]
            d0, d1, d2, d3 = d * number(s0 & 15), d * number(s1 & 15), d * number(s2 & 15), d * number(s3 & 15)
            m0, m1 = dmin * number(s0 >> 4), dmin * number(s1 >> 4)
            m2, m3 = dmin * number(s2 >> 4), dmin * number(s3 >> 4)
            for j in range(16):
                q = blocks[i, 16 + 16 * part + j]
                out[i, at + j] = d0 * number(q & 3) - m0
                out[i, at + 32 + j] = d1 * number((q >> 2) & 3) - m1
                out[i, at + 64 + j] = d2 * number((q >> 4) & 3) - m2
                out[i, at + 96 + j] = d3 * number(q >> 6) - m3


def q3_k_scale(blocks: Any, i: Any, k: Any) -> Any:
    """The k-th of 16 scales: 4 bits of bytes 96 to 103, 2 bits of bytes 104 to 107, offset by 32."""
    low = blocks[i, 96 + (k & 7)] >> (4 * (k >> 3))
    high = blocks[i, 104 + (k & 3)] >> (2 * (k >> 2))
    return number(((low & 15) | ((high & 3) << 4)) - 32)


def q3_k(blocks: Bytes, out: Floats) -> None:
    """32 bytes of third bits (clear takes 4 off), 64 of four 2-bit numbers, 12 of scales, ``d`` f16."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 108)
        for part in range(4):
            scale, at = 8 * (part >> 1) + (part & 1), 128 * (part >> 1) + 16 * (part & 1)
            d0, d1 = d * q3_k_scale(blocks, i, scale), d * q3_k_scale(blocks, i, scale + 2)
            d2, d3 = d * q3_k_scale(blocks, i, scale + 4), d * q3_k_scale(blocks, i, scale + 6)
            for j in range(16):
                q = blocks[i, 32 + 16 * part + j]
                high = blocks[i, 16 * (part & 1) + j] >> (4 * (part >> 1))
                out[i, at + j] = d0 * number(((q & 3) | ((high & 1) << 2)) - 4)
                out[i, at + 32 + j] = d1 * number((((q >> 2) & 3) | ((high & 2) << 1)) - 4)
                out[i, at + 64 + j] = d2 * number((((q >> 4) & 3) | (high & 4)) - 4)
                out[i, at + 96 + j] = d3 * number(((q >> 6) | ((high & 8) >> 1)) - 4)


def k_scale(blocks: Any, i: Any, k: Any) -> Any:
    """The k-th of 8 scales of 6 bits in bytes 4 to 15 (``get_scale_min_k4``)."""
    if k < 4:
        return number(blocks[i, 4 + k] & 63)
    return number((blocks[i, 8 + k] & 15) | ((blocks[i, k] >> 6) << 4))


def k_minimum(blocks: Any, i: Any, k: Any) -> Any:
    """The k-th of 8 minima of 6 bits in bytes 4 to 15 (``get_scale_min_k4``)."""
    if k < 4:
        return number(blocks[i, 8 + k] & 63)
    return number((blocks[i, 8 + k] >> 4) | ((blocks[i, 4 + k] >> 6) << 4))


def q4_k(blocks: Bytes, out: Floats) -> None:
    """``d``, ``dmin`` f16, 12 bytes of scales and minima, 4 times 32 bytes of two 4-bit numbers (j and j + 32)."""
    for i in range(blocks.shape[0]):
        d, dmin = half(blocks, i, 0), half(blocks, i, 2)
        for k in range(4):
            d0, m0 = d * k_scale(blocks, i, 2 * k), dmin * k_minimum(blocks, i, 2 * k)
            d1, m1 = d * k_scale(blocks, i, 2 * k + 1), dmin * k_minimum(blocks, i, 2 * k + 1)
            for j in range(32):
                q = blocks[i, 16 + 32 * k + j]
                out[i, 64 * k + j] = d0 * number(q & 15) - m0
                out[i, 64 * k + 32 + j] = d1 * number(q >> 4) - m1


def q5_k(blocks: Bytes, out: Floats) -> None:
    """As ``Q4_K``, with 32 bytes of fifth bits before the numbers: bit k for the k-th 32 elements."""
    for i in range(blocks.shape[0]):
        d, dmin = half(blocks, i, 0), half(blocks, i, 2)
        for k in range(4):
            d0, m0 = d * k_scale(blocks, i, 2 * k), dmin * k_minimum(blocks, i, 2 * k)
            d1, m1 = d * k_scale(blocks, i, 2 * k + 1), dmin * k_minimum(blocks, i, 2 * k + 1)
            for j in range(32):
                q = blocks[i, 48 + 32 * k + j]
                high = blocks[i, 16 + j] >> (2 * k)
                out[i, 64 * k + j] = d0 * number((q & 15) | ((high & 1) << 4)) - m0
                out[i, 64 * k + 32 + j] = d1 * number((q >> 4) | ((high & 2) << 3)) - m1


def q6_k(blocks: Bytes, out: Floats) -> None:
    """128 bytes of lower 4 bits, 64 of upper 2, 16 int8 scales, ``d`` f16; offset by 32."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 208)
        for part in range(4):
            # Of 128 elements the lower bits take 64 bytes, the upper 32; a scale is for 16.
            n, h = part >> 1, part & 1
            scale, at = 192 + 8 * n + h, 128 * n + 16 * h
            d0, d1 = d * signed(blocks[i, scale]), d * signed(blocks[i, scale + 2])
            d2, d3 = d * signed(blocks[i, scale + 4]), d * signed(blocks[i, scale + 6])
            for j in range(16):
                q, r = blocks[i, 64 * n + 16 * h + j], blocks[i, 64 * n + 16 * h + 32 + j]
                high = blocks[i, 128 + 32 * n + 16 * h + j]
                out[i, at + j] = d0 * number(((q & 15) | ((high & 3) << 4)) - 32)
                out[i, at + 32 + j] = d1 * number(((r & 15) | ((high & 12) << 2)) - 32)
                out[i, at + 64 + j] = d2 * number(((q >> 4) | (high & 48)) - 32)
                out[i, at + 96 + j] = d3 * number(((r >> 4) | ((high & 192) >> 2)) - 32)
