# SPDX-License-Identifier: Apache-2.0
"""Kernels of the types with one scale for 32 elements or more: ``Q4_0`` to ``Q8_0``, ``Q1_0``, ``Q2_0``, ``TQ``.

Source of layouts and of the order of operations: ``dequantize_row_*`` of ggml-quants.c, ``block_*`` of ggml-common.h.
"""

from __future__ import annotations

from weight_readers_gguf.dequant.compiled._bits import Bytes, Floats, half, number, signed, u32


def q4_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 16 bytes of two 4-bit numbers (elements j and j + 16), offset by 8."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for j in range(16):
            q = blocks[i, 2 + j]
            out[i, j] = number((q & 15) - 8) * d
            out[i, 16 + j] = number((q >> 4) - 8) * d


def q4_1(blocks: Bytes, out: Floats) -> None:
    """``d``, ``m`` f16, 16 bytes of two 4-bit numbers."""
    for i in range(blocks.shape[0]):
        d, m = half(blocks, i, 0), half(blocks, i, 2)
        for j in range(16):
            q = blocks[i, 4 + j]
            out[i, j] = number(q & 15) * d + m
            out[i, 16 + j] = number(q >> 4) * d + m


def q5_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 32 fifth bits, 16 bytes of two 4-bit numbers; offset by 16."""
    for i in range(blocks.shape[0]):
        d, high = half(blocks, i, 0), u32(blocks, i, 2)
        for j in range(16):
            q = blocks[i, 6 + j]
            fifth = high >> j
            out[i, j] = number(((q & 15) | ((fifth & 1) << 4)) - 16) * d
            out[i, 16 + j] = number(((q >> 4) | ((fifth >> 12) & 16)) - 16) * d


def q5_1(blocks: Bytes, out: Floats) -> None:
    """``d``, ``m`` f16, 32 fifth bits, 16 bytes of two 4-bit numbers."""
    for i in range(blocks.shape[0]):
        d, m, high = half(blocks, i, 0), half(blocks, i, 2), u32(blocks, i, 4)
        for j in range(16):
            q = blocks[i, 8 + j]
            fifth = high >> j
            out[i, j] = number((q & 15) | ((fifth & 1) << 4)) * d + m
            out[i, 16 + j] = number((q >> 4) | ((fifth >> 12) & 16)) * d + m


def q8_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 32 int8."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for j in range(32):
            out[i, j] = signed(blocks[i, 2 + j]) * d


def q1_0(blocks: Bytes, out: Floats, signs: Floats) -> None:
    """``d`` f16, 128 bits: set for ``d``, clear for ``-d``. ``signs`` has -1 where a bit is set."""
    for i in range(blocks.shape[0]):
        d = -half(blocks, i, 0)
        for k in range(16):
            q = blocks[i, 2 + k]
            for j in range(8):
                out[i, 8 * k + j] = d * signs[q, j]


def q2_0(blocks: Bytes, out: Floats) -> None:
    """``d`` f16, 16 bytes of four 2-bit numbers (elements 4 k to 4 k + 3), offset by 1."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for k in range(16):
            q = blocks[i, 2 + k]
            for j in range(4):
                out[i, 4 * k + j] = number(((q >> (2 * j)) & 3) - 1) * d


def tq1_0(blocks: Bytes, out: Floats) -> None:
    """32 and 16 bytes of five base-3 digits, 4 bytes of four, ``d`` f16; a digit is the top of the byte times 3."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 52)
        power = 1
        for n in range(5):
            for m in range(32):
                out[i, 32 * n + m] = number(((((blocks[i, m] * power) & 255) * 3) >> 8) - 1) * d
            for m in range(16):
                out[i, 160 + 16 * n + m] = number(((((blocks[i, 32 + m] * power) & 255) * 3) >> 8) - 1) * d
            power *= 3
        power = 1
        for n in range(4):
            for m in range(4):
                out[i, 240 + 4 * n + m] = number(((((blocks[i, 48 + m] * power) & 255) * 3) >> 8) - 1) * d
            power *= 3


def tq2_0(blocks: Bytes, out: Floats) -> None:
    """Two times 32 bytes of four 2-bit numbers (elements j, j + 32, ...), offset by 1; ``d`` f16."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 64)
        for n in range(2):
            for m in range(32):
                q = blocks[i, 32 * n + m]
                out[i, 128 * n + m] = number((q & 3) - 1) * d
                out[i, 128 * n + 32 + m] = number(((q >> 2) & 3) - 1) * d
                out[i, 128 * n + 64 + m] = number(((q >> 4) & 3) - 1) * d
                out[i, 128 * n + 96 + m] = number((q >> 6) - 1) * d
