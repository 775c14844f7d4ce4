# SPDX-License-Identifier: Apache-2.0
"""Kernels of the K types: super-blocks of 256 elements with a scale for each 16 or 32 of them.

Source: ``dequantize_row_q*_K`` and ``get_scale_min_k4`` of ggml-quants.c, operation by operation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weight_readers_gguf.dequant.triton_kernels.blocks import byte, half, kernel, put, rows, signed_byte


@kernel
def q2_k(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """84 bytes: 16 bytes of scale and minimum, 64 bytes of four codes, d, m. A row is a half of a half."""
    source, target, part, exists = rows(packed, out, count, blocks, 4, 84, 256)
    at = tl.arange(0, 16)[None, :]
    side = part // 2
    d = half(source + 80)
    m = half(source + 82)
    codes = byte(source + 16 + 16 * part + at)
    for quarter in tl.static_range(4):
        scales = byte(source + 8 * side + 2 * quarter + part % 2)
        code = ((codes >> 2 * quarter) & 3).to(tl.float32)
        value = d * (scales & 15).to(tl.float32) * code - m * (scales >> 4).to(tl.float32)
        put(target + 128 * side + 32 * quarter + 16 * (part % 2) + at, value, exists)


@kernel
def q3_k(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """110 bytes: 32 bytes of third bits, 64 bytes of four codes, 12 bytes of 16 scales, d."""
    source, target, part, exists = rows(packed, out, count, blocks, 4, 110, 256)
    at = tl.arange(0, 16)[None, :]
    side = part // 2
    d = half(source + 108)
    thirds = byte(source + 16 * (part % 2) + at) >> 4 * side
    codes = byte(source + 32 + 16 * part + at)
    for quarter in tl.static_range(4):
        group = 8 * side + 2 * quarter + part % 2
        low = byte(source + 96 + group % 8) >> 4 * side
        high = byte(source + 104 + group % 4) >> 2 * (group // 4)
        scale = ((low & 15) | (high & 3) << 4) - 32
        # The third bit, where it is missing, stands for minus 4.
        code = ((codes >> 2 * quarter) & 3) - 4 + ((thirds >> quarter) & 1) * 4
        value = d * scale.to(tl.float32) * code.to(tl.float32)
        put(target + 128 * side + 32 * quarter + 16 * (part % 2) + at, value, exists)


@triton.jit
def scale_and_minimum(scales: tl.tensor, group: tl.tensor) -> tl.tuple:
    """The 6 bits of scale and of minimum of ``group``, of eight in 12 bytes, as float32."""
    low = byte(scales + group % 4)
    middle = byte(scales + 4 + group % 4)
    high = byte(scales + 8 + group % 4)
    scale = tl.where(group < 4, low & 63, (high & 15) | (low >> 6) << 4)
    minimum = tl.where(group < 4, middle & 63, (high >> 4) | (middle >> 6) << 4)
    return scale.to(tl.float32), minimum.to(tl.float32)


@kernel
def q4_k(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """144 bytes: d, m, 12 bytes of eight scales and minimums, 128 bytes of two codes. A row is a quarter."""
    source, target, part, exists = rows(packed, out, count, blocks, 4, 144, 256)
    at = tl.arange(0, 32)[None, :]
    d = half(source)
    m = half(source + 2)
    codes = byte(source + 16 + 32 * part + at)
    for high in tl.static_range(2):
        scale, minimum = scale_and_minimum(source + 4, 2 * part + high)
        code = ((codes >> 4 * high) & 15).to(tl.float32)
        put(target + 64 * part + 32 * high + at, d * scale * code - m * minimum, exists)


@kernel
def q5_k(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """176 bytes: d, m, 12 bytes of eight scales and minimums, 32 bytes of fifth bits, 128 bytes of two codes."""
    source, target, part, exists = rows(packed, out, count, blocks, 4, 176, 256)
    at = tl.arange(0, 32)[None, :]
    d = half(source)
    m = half(source + 2)
    fifths = byte(source + 16 + at) >> 2 * part
    codes = byte(source + 48 + 32 * part + at)
    for high in tl.static_range(2):
        scale, minimum = scale_and_minimum(source + 4, 2 * part + high)
        code = (((codes >> 4 * high) & 15) | ((fifths >> high) & 1) << 4).to(tl.float32)
        put(target + 64 * part + 32 * high + at, d * scale * code - m * minimum, exists)


@kernel
def q6_k(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """210 bytes: 128 bytes of two codes, 64 bytes of four pairs of upper bits, 16 signed scales, d."""
    source, target, part, exists = rows(packed, out, count, blocks, 4, 210, 256)
    at = tl.arange(0, 16)[None, :]
    side = part // 2
    within = 16 * (part % 2)
    d = half(source + 208)
    uppers = byte(source + 128 + 32 * side + within + at)
    for odd in tl.static_range(2):
        codes = byte(source + 64 * side + 32 * odd + within + at)
        for high in tl.static_range(2):
            quarter = 2 * high + odd
            code = (((codes >> 4 * high) & 15) | ((uppers >> 2 * quarter) & 3) << 4) - 32
            scale = signed_byte(source + 192 + 8 * side + 2 * quarter + part % 2)
            value = d * scale.to(tl.float32) * code.to(tl.float32)
            put(target + 128 * side + 32 * quarter + within + at, value, exists)
