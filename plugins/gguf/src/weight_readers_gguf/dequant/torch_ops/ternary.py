# SPDX-License-Identifier: Apache-2.0
"""The ternary types: blocks of 256 elements that are -d, 0 or d.

Layouts: ``block_tq*_0`` of ggml-common.h; formulas: ``dequantize_row_tq*_0`` of ggml-quants.c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.dequant.torch_ops.bits import PAIRS, centred, field, half, planes, put


def tq1_0(blocks: Tensor, out: Tensor) -> None:
    """``u8 qs[48], qh[4]; half d``: five elements to a byte of qs, four to one of qh, as digits of base 3.

    The first 32 bytes hold 160 elements (32 first digits, then 32 second ones ...), the next 16 bytes 80, qh 16.
    A byte is the digits' fraction of one, times 256, rounded up: digit n is ``(byte * 3 ** n mod 256) * 3 >> 8``.
    """
    powers, packed = constants.powers_of_three(blocks.device), field(blocks, 0, 52).unsqueeze(1)
    spans = (packed[:, :, :32] * powers, packed[:, :, 32:48] * powers, packed[:, :, 48:] * powers[:4])
    fractions = torch.cat([span.flatten(1) for span in spans], dim=1)
    digits = fractions.to(torch.int16).mul_(3).bitwise_right_shift_(8)
    put(out, digits.to(torch.int8).sub_(1), half(blocks, 52))


def tq2_0(blocks: Tensor, out: Tensor) -> None:
    """``u8 qs[64]; half d``: ``d * (q - 1)``; the codes of two bits as in ``Q2_K``."""
    put(out, centred(planes(blocks, 0, 64, 32, PAIRS, 0x03), 1), half(blocks, 64))
