# SPDX-License-Identifier: Apache-2.0
"""Kernels of the types with one scale for a block: ``Q4_0`` to ``Q8_0``, ``Q1_0``, ``Q2_0``, ``TQ1_0``, ``TQ2_0``.

Source of layouts and of the order of operations: ``dequantize_row_*`` of ggml-quants.c, ``block_*`` of ggml-common.h.
"""

from __future__ import annotations

from weight_readers_gguf.dequant.compiled._bits import Bytes, Floats, half, number, u16, u32
from weight_readers_gguf.dequant.compiled._vectors import bits16, bytes16, numbers, pairs16, put, signed16


def q4_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 16 bytes of two 4-bit numbers (elements j and j + 16), offset by 8."""
    for i in range(blocks.shape[0]):
        d, q = half(blocks, i, 0), bytes16(blocks, i, 2)
        put(out, i, 0, numbers((q & 15) - 8) * d)
        put(out, i, 16, numbers((q >> 4) - 8) * d)


def q4_1(blocks: Bytes, out: Floats) -> None:
    """``d``, ``m`` f16, 16 bytes of two 4-bit numbers."""
    for i in range(blocks.shape[0]):
        d, m, q = half(blocks, i, 0), half(blocks, i, 2), bytes16(blocks, i, 4)
        put(out, i, 0, numbers(q & 15) * d + m)
        put(out, i, 16, numbers(q >> 4) * d + m)


def q5_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 32 fifth bits, 16 bytes of two 4-bit numbers; offset by 16."""
    for i in range(blocks.shape[0]):
        d, q = half(blocks, i, 0), bytes16(blocks, i, 6)
        put(out, i, 0, numbers(((q & 15) | (bits16(u16(blocks, i, 2)) << 4)) - 16) * d)
        put(out, i, 16, numbers(((q >> 4) | (bits16(u16(blocks, i, 4)) << 4)) - 16) * d)


def q5_1(blocks: Bytes, out: Floats) -> None:
    """``d``, ``m`` f16, 32 fifth bits, 16 bytes of two 4-bit numbers."""
    for i in range(blocks.shape[0]):
        d, m, q = half(blocks, i, 0), half(blocks, i, 2), bytes16(blocks, i, 8)
        put(out, i, 0, numbers((q & 15) | (bits16(u16(blocks, i, 4)) << 4)) * d + m)
        put(out, i, 16, numbers((q >> 4) | (bits16(u16(blocks, i, 6)) << 4)) * d + m)


def q8_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 32 int8."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        put(out, i, 0, numbers(signed16(blocks, i, 2)) * d)
        put(out, i, 16, numbers(signed16(blocks, i, 18)) * d)


def q1_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 128 bits: set for ``d``, clear for ``-d``."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(8):
            put(out, i, 16 * k, numbers(bits16(u16(blocks, i, 2 + 2 * k)) * 2 - 1) * d)


def q2_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 16 bytes of four 2-bit numbers (elements 4 k to 4 k + 3), offset by 1."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(4):
            put(out, i, 16 * k, numbers(pairs16(u32(blocks, i, 2 + 4 * k)) - 1) * d)


def tq1_0(blocks: Bytes, out: Floats) -> None:
    """32 and 16 bytes of five base-3 digits, 4 bytes of four, ``d`` f16; a digit is the top of the byte times 3."""
    for i in range(blocks.shape[0]):
        d, power = half(blocks, i, 52), 1
        q0, q1, q2 = bytes16(blocks, i, 0), bytes16(blocks, i, 16), bytes16(blocks, i, 32)
        for n in range(5):
            put(out, i, 32 * n, numbers((((q0 * power & 255) * 3) >> 8) - 1) * d)
            put(out, i, 32 * n + 16, numbers((((q1 * power & 255) * 3) >> 8) - 1) * d)
            put(out, i, 160 + 16 * n, numbers((((q2 * power & 255) * 3) >> 8) - 1) * d)
            if n < 4:
                for m in range(4):
                    out[i, 240 + 4 * n + m] = number((((blocks[i, 48 + m] * power & 255) * 3) >> 8) - 1) * d
            power *= 3


def tq2_0(blocks: Bytes, out: Floats) -> None:
    """Two times 32 bytes of four 2-bit numbers (elements j, j + 32, ...), offset by 1; ``d`` f16."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 64)
        for part in range(4):
            q, at = bytes16(blocks, i, 16 * part), 128 * (part >> 1) + 16 * (part & 1)
            for n in range(4):
                put(out, i, at + 32 * n, numbers(((q >> (2 * n)) & 3) - 1) * d)
