# SPDX-License-Identifier: Apache-2.0
"""What all kernels share: which blocks a program decodes, reads that need no alignment, and the one rounding.

A program works on whole blocks, laid out as rows: a row is the part of a block whose elements share a scale. Blocks
have odd sizes, so that wider numbers are read byte by byte; elements take one load per byte of codes.
"""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

# Not compiled anew for one block, or for a multiple of 16.
kernel = partial(triton.jit, do_not_specialize=["count"])


@triton.jit
def rows(
    packed: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    blocks: tl.constexpr,
    parts: tl.constexpr,
    nbytes: tl.constexpr,
    elements: tl.constexpr,
) -> tl.tuple:
    """The rows of this program: each of the ``parts`` of each of its ``blocks`` blocks.

    Returns, each ``[rows, 1]``: where the block begins in ``packed``, where its elements go in ``out``, which part
    the row is, and whether the block exists. Rows past the end read the last block again and store nothing.
    """
    row = tl.arange(0, blocks * parts)[:, None]
    # int64 before the multiplication: 2^31 elements are a weight of 8 GiB.
    block = tl.program_id(0).to(tl.int64) * blocks + row // parts
    exists = block < count
    block = tl.minimum(block, count - 1)
    return packed + block * nbytes, out + block * elements, row % parts, exists


@triton.jit
def byte(pointer: tl.tensor) -> tl.tensor:
    """The uint8 there, as int32."""
    return tl.load(pointer).to(tl.int32)


@triton.jit
def signed_byte(pointer: tl.tensor) -> tl.tensor:
    """The int8 there, as int32."""
    return tl.load(pointer).to(tl.int8, bitcast=True).to(tl.int32)


@triton.jit
def short(pointer: tl.tensor) -> tl.tensor:
    """The little-endian uint16 there, as int32."""
    return byte(pointer) | byte(pointer + 1) << 8


@triton.jit
def word(pointer: tl.tensor) -> tl.tensor:
    """The little-endian 32 bits there, as int32: mask after shifting right."""
    return short(pointer) | short(pointer + 2) << 16


@triton.jit
def as_half(bits: tl.tensor) -> tl.tensor:
    """The float16 of these 16 bits, as float32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def half(pointer: tl.tensor) -> tl.tensor:
    """The float16 there, as float32."""
    return as_half(short(pointer))


@triton.jit
def put(pointer: tl.tensor, values: tl.tensor, exists: tl.tensor) -> None:
    """Store float32 ``values`` where the block exists, rounded once, to the nearest even."""
    tl.store(pointer, values.to(pointer.dtype.element_ty), mask=exists)
