# SPDX-License-Identifier: Apache-2.0
"""Kernels of the types whose 4-bit numbers index 16 values: ``IQ4_NL``, ``IQ4_XS``, ``MXFP4``, ``NVFP4``.

Source of layouts and of the order of operations: ``dequantize_row_*`` of ggml-quants.c, ``block_*`` of ggml-common.h.
"""

from __future__ import annotations

from weight_readers_gguf.dequant.compiled._bits import Bytes, Floats, half, number, u16


def iq4_nl(blocks: Bytes, out: Floats, values: Floats) -> None:
    """``d`` f16, 16 bytes of two indices (elements j and j + 16)."""
    for i in range(blocks.shape[0]):
        d = half(blocks, i, 0)
        for j in range(16):
            q = blocks[i, 2 + j]
            out[i, j] = d * values[q & 15, 0]
            out[i, 16 + j] = d * values[q >> 4, 0]


def iq4_xs(blocks: Bytes, out: Floats, values: Floats) -> None:
    """``d`` f16, 8 scales of 6 bits (upper 2 in a u16, lower 4 in 4 bytes; offset by 32), 8 times ``IQ4_NL``."""
    for i in range(blocks.shape[0]):
        d, high = half(blocks, i, 0), u16(blocks, i, 2)
        for k in range(8):
            low = blocks[i, 4 + (k >> 1)] >> (4 * (k & 1))
            scaled = d * number(((low & 15) | (((high >> (2 * k)) & 3) << 4)) - 32)
            for j in range(16):
                q = blocks[i, 8 + 16 * k + j]
                out[i, 32 * k + j] = scaled * values[q & 15, 0]
                out[i, 32 * k + 16 + j] = scaled * values[q >> 4, 0]


def mxfp4(blocks: Bytes, out: Floats, values: Floats, scales: Floats) -> None:
    """One byte that indexes ``scales`` (E8M0, halved), 16 bytes of two indices (elements j and j + 16)."""
    for i in range(blocks.shape[0]):
        d = scales[blocks[i, 0], 0]
        for j in range(16):
            q = blocks[i, 1 + j]
            out[i, j] = values[q & 15, 0] * d
            out[i, 16 + j] = values[q >> 4, 0] * d


def nvfp4(blocks: Bytes, out: Floats, values: Floats, scales: Floats) -> None:
    """4 bytes that index ``scales`` (UE4M3, halved), 4 times 8 bytes of two indices (elements j and j + 8)."""
    for i in range(blocks.shape[0]):
        for k in range(4):
            d = scales[blocks[i, k], 0]
            for j in range(8):
                q = blocks[i, 4 + 8 * k + j]
                out[i, 16 * k + j] = values[q & 15, 0] * d
                out[i, 16 * k + 8 + j] = values[q >> 4, 0] * d
