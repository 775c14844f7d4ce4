# SPDX-License-Identifier: Apache-2.0
"""Kernels of the types whose codes name entries of a codebook: IQ1, IQ2 and IQ3, of 256 elements each.

Source: ``dequantize_row_iq*`` of ggml-quants.c, operation by operation. ``table`` holds the type's codebook, int8
``[entries, 8]`` (``[entries, 4]`` for IQ3); a row is what one code stands for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from weight_readers_gguf.dequant.triton_kernels.blocks import as_half, byte, half, kernel, put, rows, short, word


@triton.jit
def entry(table: tl.tensor, code: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """The ``width`` numbers that ``code`` stands for, as float32."""
    return tl.load(table + code * width + tl.arange(0, width)[None, :]).to(tl.float32)


@triton.jit
def eight_signs(seven: tl.tensor) -> tl.tensor:
    """``ksigns_iq2xs``: seven signs, and an eighth that makes the number of minuses even."""
    parity = seven ^ (seven >> 4)
    parity = parity ^ (parity >> 2)
    parity = (parity ^ (parity >> 1)) & 1
    return seven | parity << 7


@triton.jit
def sign(signs: tl.tensor, at: tl.tensor) -> tl.tensor:
    """-1 where bit ``at`` is set, else 1."""
    return (1 - 2 * ((signs >> at) & 1)).to(tl.float32)


@triton.jit
def delta(minus: tl.tensor) -> tl.tensor:
    """``IQ1S_DELTA``, negative where ``minus`` is not 0."""
    return tl.where(minus != 0, -0.125, 0.125)


@kernel
def iq1_s(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """50 bytes: d, the lower bits of 32 codes, 8 times uint16 of upper bits, scale and sign of delta."""
    source, target, part, exists = rows(packed, out, count, blocks, 32, 50, 256)
    at = tl.arange(0, 8)[None, :]
    group = short(source + 34 + 2 * (part // 4))
    code = byte(source + 2 + part) | ((group >> 3 * (part % 4)) & 7) << 8
    scale = half(source) * (2 * ((group >> 12) & 7) + 1).to(tl.float32)
    put(target + 8 * part + at, scale * (entry(table, code, 8) + delta(group & 0x8000)), exists)


@kernel
def iq1_m(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """56 bytes: the lower bits of 32 codes, their upper bits and signs of delta, 16 scales with d in between."""
    source, target, part, exists = rows(packed, out, count, blocks, 32, 56, 256)
    at = tl.arange(0, 8)[None, :]
    upper = byte(source + 32 + part // 2) >> 4 * (part % 2)
    code = byte(source + part) | (upper & 7) << 8
    d = short(source + 48) >> 12 | (short(source + 50) >> 12) << 4
    d = d | (short(source + 52) >> 12) << 8 | (short(source + 54) >> 12) << 12
    scales = short(source + 48 + 2 * (part // 8)) >> 3 * (part // 2 % 4)
    scale = as_half(d) * (2 * (scales & 7) + 1).to(tl.float32)
    put(target + 8 * part + at, scale * (entry(table, code, 8) + delta(upper & 8)), exists)


@kernel
def iq2_xxs(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """66 bytes: d, 8 times four codes and 32 bits of signs and scale."""
    source, target, part, exists = rows(packed, out, count, blocks, 32, 66, 256)
    at = tl.arange(0, 8)[None, :]
    group = source + 2 + 8 * (part // 4)
    bits = word(group + 4)
    scale = half(source) * (0.5 + ((bits >> 28) & 15).to(tl.float32)) * 0.25
    signs = eight_signs((bits >> 7 * (part % 4)) & 127)
    put(target + 8 * part + at, scale * entry(table, byte(group + part % 4), 8) * sign(signs, at), exists)


@kernel
def iq2_xs(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """74 bytes: d, 32 times uint16 of code and signs, 16 scales."""
    source, target, part, exists = rows(packed, out, count, blocks, 32, 74, 256)
    at = tl.arange(0, 8)[None, :]
    code = short(source + 2 + 2 * part)
    scales = byte(source + 66 + part // 4) >> 4 * (part // 2 % 2)
    scale = half(source) * (0.5 + (scales & 15).to(tl.float32)) * 0.25
    signs = eight_signs(code >> 9)
    put(target + 8 * part + at, scale * entry(table, code & 511, 8) * sign(signs, at), exists)


@kernel
def iq2_s(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """82 bytes: d, the lower bits of 32 codes, 32 bytes of signs, 8 bytes of upper bits, 16 scales."""
    source, target, part, exists = rows(packed, out, count, blocks, 32, 82, 256)
    at = tl.arange(0, 8)[None, :]
    upper = byte(source + 66 + part // 4) >> 2 * (part % 4)
    code = byte(source + 2 + part) | (upper & 3) << 8
    scales = byte(source + 74 + part // 4) >> 4 * (part // 2 % 2)
    scale = half(source) * (0.5 + (scales & 15).to(tl.float32)) * 0.25
    signs = byte(source + 34 + part)
    put(target + 8 * part + at, scale * entry(table, code, 8) * sign(signs, at), exists)


@kernel
def iq3_xxs(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """98 bytes: d, 64 codes, 8 times 32 bits of signs and scale."""
    source, target, part, exists = rows(packed, out, count, blocks, 64, 98, 256)
    at = tl.arange(0, 4)[None, :]
    bits = word(source + 66 + 4 * (part // 8))
    scale = half(source) * (0.5 + ((bits >> 28) & 15).to(tl.float32)) * 0.5
    signs = eight_signs((bits >> 7 * (part // 2 % 4)) & 127) >> 4 * (part % 2)
    put(target + 4 * part + at, scale * entry(table, byte(source + 2 + part), 4) * sign(signs, at), exists)


@kernel
def iq3_s(packed: tl.tensor, out: tl.tensor, table: tl.tensor, count: tl.tensor, blocks: tl.constexpr) -> None:
    """110 bytes: d, the lower bits of 64 codes, their uppermost bits, 32 bytes of signs, 8 scales."""
    source, target, part, exists = rows(packed, out, count, blocks, 64, 110, 256)
    at = tl.arange(0, 4)[None, :]
    upper = byte(source + 66 + part // 8) >> part % 8
    code = byte(source + 2 + part) | (upper & 1) << 8
    scales = byte(source + 106 + part // 16) >> 4 * (part // 8 % 2)
    scale = half(source) * (2 * (scales & 15) + 1).to(tl.float32)
    signs = byte(source + 74 + part // 2) >> 4 * (part % 2)
    put(target + 4 * part + at, scale * entry(table, code, 4) * sign(signs, at), exists)
