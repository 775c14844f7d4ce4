# SPDX-License-Identifier: Apache-2.0
"""Kernels of the types with one scale per block: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q1_0, Q2_0.

Source: ``dequantize_row_*`` of ggml-quants.c, operation by operation; ``d`` is the scale, ``m`` the minimum.
"""

from __future__ import annotations

import triton.language as tl

from weight_readers_gguf.dequant.triton_kernels.blocks import byte, half, kernel, put, rows, signed_byte, word


@kernel
def q4_0(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """18 bytes: d, 16 bytes of two codes."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 18, 32)
    at = tl.arange(0, 16)[None, :]
    d = half(source)
    codes = byte(source + 2 + at)
    for high in tl.static_range(2):
        code = (codes >> 4 * high) & 15
        put(target + 16 * high + at, (code - 8).to(tl.float32) * d, exists)


@kernel
def q4_1(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """20 bytes: d, m, 16 bytes of two codes."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 20, 32)
    at = tl.arange(0, 16)[None, :]
    d = half(source)
    m = half(source + 2)
    codes = byte(source + 4 + at)
    for high in tl.static_range(2):
        code = (codes >> 4 * high) & 15
        put(target + 16 * high + at, code.to(tl.float32) * d + m, exists)


@kernel
def q5_0(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """22 bytes: d, the fifth bits of 32 codes, 16 bytes of two codes."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 22, 32)
    at = tl.arange(0, 16)[None, :]
    d = half(source)
    fifths = word(source + 2)
    codes = byte(source + 6 + at)
    for high in tl.static_range(2):
        code = ((codes >> 4 * high) & 15) | ((fifths >> (16 * high + at)) & 1) << 4
        put(target + 16 * high + at, (code - 16).to(tl.float32) * d, exists)


@kernel
def q5_1(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """24 bytes: d, m, the fifth bits of 32 codes, 16 bytes of two codes."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 24, 32)
    at = tl.arange(0, 16)[None, :]
    d = half(source)
    m = half(source + 2)
    fifths = word(source + 4)
    codes = byte(source + 8 + at)
    for high in tl.static_range(2):
        code = ((codes >> 4 * high) & 15) | ((fifths >> (16 * high + at)) & 1) << 4
        put(target + 16 * high + at, code.to(tl.float32) * d + m, exists)


@kernel
def q8_0(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """34 bytes: d, 32 signed codes."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 34, 32)
    at = tl.arange(0, 32)[None, :]
    put(target + at, signed_byte(source + 2 + at).to(tl.float32) * half(source), exists)


@kernel
def q1_0(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """18 bytes: d, 128 bits that say plus."""
    source, target, part, exists = rows(packed, out, count, blocks, 16, 18, 128)
    at = tl.arange(0, 8)[None, :]
    plus = (byte(source + 2 + part) >> at) & 1
    # A product, since Triton's minus is 0 - x, which has another sign of zero.
    put(target + 8 * part + at, (2 * plus - 1).to(tl.float32) * half(source), exists)


@kernel
def q2_0(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """18 bytes: d, 16 bytes of four codes."""
    source, target, part, exists = rows(packed, out, count, blocks, 16, 18, 64)
    at = tl.arange(0, 4)[None, :]
    code = (byte(source + 2 + part) >> 2 * at) & 3
    put(target + 4 * part + at, (code - 1).to(tl.float32) * half(source), exists)
