# SPDX-License-Identifier: Apache-2.0
"""Kernels of the K types: super-blocks of 256 elements with quantized scales.

Source of layouts and of the order of operations: ``dequantize_row_q*_K`` of ggml-quants.c, ``block_q*_K`` of
ggml-common.h.
"""

from __future__ import annotations

from typing import Any

from weight_readers_gguf.dequant.compiled._bits import Bytes, Floats, half, helper, number, signed
from weight_readers_gguf.dequant.compiled._vectors import bytes16, numbers, put


def q2_k(blocks: Bytes, out: Floats) -> None:
    """16 bytes of (minimum, scale) for 16 elements each, 64 bytes of four 2-bit numbers, ``d``, ``dmin`` f16."""
    for i in range(blocks.shape[0]):
        d, dmin = half(blocks, i, 80), half(blocks, i, 82)
        for part in range(4):
            # 16 bytes of numbers: one half of the 32 that make 128 elements.
            q, scale, at = bytes16(blocks, i, 16 + 16 * part), 8 * (part >> 1) + (part & 1), _at(part)
            for n in range(4):
                s = blocks[i, scale + 2 * n]
                put(out, i, at + 32 * n, numbers((q >> (2 * n)) & 3) * (d * number(s & 15)) - dmin * number(s >> 4))


def q3_k(blocks: Bytes, out: Floats) -> None:
    """32 bytes of third bits (clear takes 4 off), 64 of four 2-bit numbers, 12 of scales, ``d`` f16."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 108)
        for part in range(4):
            q, scale, at = bytes16(blocks, i, 32 + 16 * part), 8 * (part >> 1) + (part & 1), _at(part)
            high = bytes16(blocks, i, 16 * (part & 1)) >> (4 * (part >> 1))
            for n in range(4):
                three = ((q >> (2 * n)) & 3) | (((high >> n) & 1) << 2)
                put(out, i, at + 32 * n, numbers(three - 4) * (d * q3_k_scale(blocks, i, scale + 2 * n)))


def q4_k(blocks: Bytes, out: Floats) -> None:
    """``d``, ``dmin`` f16, 12 bytes of scales and minima, 4 times 32 bytes of two 4-bit numbers (j and j + 32)."""
    for i in range(blocks.shape[0]):
        d, dmin = half(blocks, i, 0), half(blocks, i, 2)
        for k in range(4):
            d0, m0 = d * k_scale(blocks, i, 2 * k), dmin * k_minimum(blocks, i, 2 * k)
            d1, m1 = d * k_scale(blocks, i, 2 * k + 1), dmin * k_minimum(blocks, i, 2 * k + 1)
            for n in range(2):
                q, at = bytes16(blocks, i, 16 + 32 * k + 16 * n), 64 * k + 16 * n
                put(out, i, at, numbers(q & 15) * d0 - m0)
                put(out, i, at + 32, numbers(q >> 4) * d1 - m1)


def q5_k(blocks: Bytes, out: Floats) -> None:
    """As ``Q4_K``, with 32 bytes of fifth bits before the numbers: bit k for the k-th 32 elements."""
    for i in range(blocks.shape[0]):
        d, dmin = half(blocks, i, 0), half(blocks, i, 2)
        for k in range(4):
            d0, m0 = d * k_scale(blocks, i, 2 * k), dmin * k_minimum(blocks, i, 2 * k)
            d1, m1 = d * k_scale(blocks, i, 2 * k + 1), dmin * k_minimum(blocks, i, 2 * k + 1)
            for n in range(2):
                q, at = bytes16(blocks, i, 48 + 32 * k + 16 * n), 64 * k + 16 * n
                high = bytes16(blocks, i, 16 + 16 * n) >> (2 * k)
                put(out, i, at, numbers((q & 15) | ((high & 1) << 4)) * d0 - m0)
                put(out, i, at + 32, numbers((q >> 4) | ((high & 2) << 3)) * d1 - m1)


def q6_k(blocks: Bytes, out: Floats) -> None:
    """128 bytes of lower 4 bits, 64 of upper 2, 16 int8 scales, ``d`` f16; offset by 32."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 208)
        for part in range(4):
            # Of 128 elements the lower bits take 64 bytes, the upper 32; a scale is for 16 elements.
            low, scale, at = 64 * (part >> 1) + 16 * (part & 1), 192 + 8 * (part >> 1) + (part & 1), _at(part)
            q, r, high = bytes16(blocks, i, low), bytes16(blocks, i, low + 32), bytes16(blocks, i, 128 + 16 * part)
            d0, d1 = d * signed(blocks[i, scale]), d * signed(blocks[i, scale + 2])
            d2, d3 = d * signed(blocks[i, scale + 4]), d * signed(blocks[i, scale + 6])
            put(out, i, at, numbers(((q & 15) | ((high & 3) << 4)) - 32) * d0)
            put(out, i, at + 32, numbers(((r & 15) | ((high & 12) << 2)) - 32) * d1)
            put(out, i, at + 64, numbers(((q >> 4) | (high & 48)) - 32) * d2)
            put(out, i, at + 96, numbers(((r >> 4) | ((high & 192) >> 2)) - 32) * d3)


@helper
def _at(part: Any) -> Any:
    """Where the elements of the part-th 16 bytes begin: two parts share 128 elements, in turns of 16."""
    return 128 * (part >> 1) + 16 * (part & 1)


@helper
def q3_k_scale(blocks: Any, i: Any, k: Any) -> Any:
    """The k-th of 16 scales: 4 bits of bytes 96 to 103, 2 bits of bytes 104 to 107, offset by 32."""
    low = blocks[i, 96 + (k & 7)] >> (4 * (k >> 3))
    high = blocks[i, 104 + (k & 3)] >> (2 * (k >> 2))
    return number(((low & 15) | ((high & 3) << 4)) - 32)


@helper
def k_scale(blocks: Any, i: Any, k: Any) -> Any:
    """The k-th of 8 scales of 6 bits in bytes 4 to 15 (``get_scale_min_k4``)."""
    if k < 4:
        return number(blocks[i, 4 + k] & 63)
    return number((blocks[i, 8 + k] & 15) | ((blocks[i, k] >> 6) << 4))


@helper
def k_minimum(blocks: Any, i: Any, k: Any) -> Any:
    """The k-th of 8 minima of 6 bits in bytes 4 to 15 (``get_scale_min_k4``)."""
    if k < 4:
        return number(blocks[i, 8 + k] & 63)
    return number((blocks[i, 8 + k] >> 4) | ((blocks[i, 4 + k] >> 6) << 4))
