# SPDX-License-Identifier: Apache-2.0
"""Kernels of the ternary types TQ1_0 and TQ2_0: super-blocks of 256 elements that are -d, 0 or d (or 2 d).

Source: ``dequantize_row_tq1_0`` and ``dequantize_row_tq2_0`` of ggml-quants.c.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weight_readers_gguf.dequant.triton_kernels.blocks import byte, half, kernel, put, rows


@triton.jit
def trits(
    source: tl.tensor, target: tl.tensor, exists: tl.tensor, d: tl.tensor, width: tl.constexpr, digits: tl.constexpr
) -> None:
    """``digits`` base-3 digits of each of ``width`` bytes, the bytes being fractions of 256: digit first, byte next."""
    at = tl.arange(0, width)[None, :]
    rest = byte(source + at)
    for digit in tl.static_range(digits):
        trit = (rest * 3) >> 8
        put(target + width * digit + at, (trit - 1).to(tl.float32) * d, exists)
        rest = (rest * 3) & 255


@kernel
def tq1_0(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """54 bytes: 32 bytes and 16 bytes of five digits, 4 bytes of four digits, d."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 54, 256)
    d = half(source + 52)
    trits(source, target, exists, d, 32, 5)
    trits(source + 32, target + 160, exists, d, 16, 5)
    trits(source + 48, target + 240, exists, d, 4, 4)


@kernel
def tq2_0(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """66 bytes: 64 bytes of four codes, d. A row is a half."""
    source, target, part, exists = rows(packed, out, count, blocks, 2, 66, 256)
    at = tl.arange(0, 32)[None, :]
    d = half(source + 64)
    codes = byte(source + 32 * part + at)
    for quarter in tl.static_range(4):
        code = ((codes >> 2 * quarter) & 3) - 1
        put(target + 128 * part + 32 * quarter + at, code.to(tl.float32) * d, exists)
