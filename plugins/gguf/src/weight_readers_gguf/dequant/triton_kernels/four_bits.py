# SPDX-License-Identifier: Apache-2.0
"""Kernels of the types whose codes of 4 bits name one of 16 values: MXFP4, NVFP4, IQ4_NL, IQ4_XS.

Source: ``dequantize_row_*`` of ggml-quants.c, ``ggml_e8m0_to_fp32_half`` and ``ggml_ue4m3_to_fp32`` of ggml-impl.h.
``table`` holds ``kvalues_iq4nl``, int8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weight_readers_gguf.dequant.triton_kernels.blocks import byte, half, kernel, put, rows, short


@triton.jit
def twice_e2m1(code: tl.tensor) -> tl.tensor:
    """``kvalues_mxfp4``, twice the number in E2M1: 0 1 2 3 4 6 8 12 and their negatives, as float32 without -0."""
    size = code & 7
    value = tl.where(size < 4, size, ((size & 1) | 2) << tl.where(size < 6, 1, 2))
    return tl.where(code < 8, value, 0 - value).to(tl.float32)


@triton.jit
def half_e8m0(code: tl.tensor) -> tl.tensor:
    """Half the number 2^(code - 127), denormal for the two smallest; 255 is 2^127 here, not NaN."""
    bits = tl.where(code < 2, 0x00200000 << tl.minimum(code, 1), (code - 1) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def half_ue4m3(code: tl.tensor) -> tl.tensor:
    """Half the number of 4 bits of exponent (bias 7) and 3 of mantissa; 0x7F is 0, the uppermost bit is ignored."""
    exponent = (code >> 3) & 15
    mantissa = (code & 7) + tl.where(exponent > 0, 8, 0)
    power = (tl.maximum(exponent, 1) + (127 - 11)) << 23
    value = mantissa.to(tl.float32) * power.to(tl.float32, bitcast=True)
    return tl.where(code == 0x7F, 0.0, value)


@kernel
def mxfp4(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """17 bytes: the scale in E8M0, 16 bytes of two codes."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 17, 32)
    at = tl.arange(0, 16)[None, :]
    d = half_e8m0(byte(source))
    codes = byte(source + 1 + at)
    for high in tl.static_range(2):
        put(target + 16 * high + at, twice_e2m1((codes >> 4 * high) & 15) * d, exists)


@kernel
def nvfp4(packed: tl.tensor, out: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """36 bytes: four scales in UE4M3, 32 bytes of two codes. A row is a quarter."""
    source, target, part, exists = rows(packed, out, count, blocks, 4, 36, 64)
    at = tl.arange(0, 8)[None, :]
    d = half_ue4m3(byte(source + part))
    codes = byte(source + 4 + 8 * part + at)
    for high in tl.static_range(2):
        put(target + 16 * part + 8 * high + at, twice_e2m1((codes >> 4 * high) & 15) * d, exists)


@kernel
def iq4_nl(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """18 bytes: d, 16 bytes of two codes."""
    source, target, _, exists = rows(packed, out, count, blocks, 1, 18, 32)
    at = tl.arange(0, 16)[None, :]
    d = half(source)
    codes = byte(source + 2 + at)
    for high in tl.static_range(2):
        value = tl.load(table + ((codes >> 4 * high) & 15)).to(tl.float32)
        put(target + 16 * high + at, d * value, exists)


@kernel
def iq4_xs(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """136 bytes: d, upper bits of eight scales, 4 bytes of two scales, 128 bytes of two codes. A row is an eighth."""
    source, target, part, exists = rows(packed, out, count, blocks, 8, 136, 256)
    at = tl.arange(0, 16)[None, :]
    low = (byte(source + 4 + part // 2) >> 4 * (part % 2)) & 15
    upper = (short(source + 2) >> 2 * part) & 3
    scale = half(source) * ((low | upper << 4) - 32).to(tl.float32)
    codes = byte(source + 8 + 16 * part + at)
    for high in tl.static_range(2):
        value = tl.load(table + ((codes >> 4 * high) & 15)).to(tl.float32)
        put(target + 32 * part + 16 * high + at, scale * value, exists)
