# SPDX-License-Identifier: Apache-2.0
"""The ternary types: blocks of 256 elements that are -d, 0 or d.

Layouts: ``block_tq*_0`` of ggml-common.h; formulas: ``dequantize_row_tq*_0`` of ggml-quants.c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops.bits import centred, field, half, pick, put, words


def tq1_0(blocks: Tensor, out: Tensor) -> None:
    """``u8 qs[48], qh[4]; half d``: five elements to a byte of qs, four to one of qh, as digits of base 3.

    The first 32 bytes hold 160 elements (32 first digits, then 32 second ones ...), the next 16 bytes 80, qh 16.
    A byte is the digits' fraction of one, times 256, rounded up: digit n is ``(byte * 3 ** n mod 256) * 3 >> 8``.
    """
    scale = half(blocks, 52)
    for at, nbytes, digits, begin in ((0, 32, 5, 0), (32, 16, 5, 160), (48, 4, 4, 240)):
        fraction, target = field(blocks, at, nbytes), out[:, begin : begin + nbytes * digits].split(nbytes, dim=1)
        for where in target:
            put(where, _digit(fraction), scale)
            fraction.mul_(3)


def tq2_0(blocks: Tensor, out: Tensor) -> None:
    """``u8 qs[64]; half d``: ``d * (q - 1)``; the codes of two bits as in ``Q2_K``."""
    scale, quants, target = half(blocks, 64).view(-1, 1, 1), words(blocks, 0, 64), out.view(-1, 2, 4, 32)
    for at in range(4):
        put(target[:, :, at], centred(pick(quants, 2 * at, 0x03), 1), scale)


def _digit(fraction: Tensor) -> Tensor:
    """``(fraction * 3 >> 8) - 1``, without leaving the byte: that steps up at 86 and at 171."""
    return (fraction >= 86).view(torch.int8) + (fraction >= 171).view(torch.int8) - 1
