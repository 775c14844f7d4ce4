# SPDX-License-Identifier: Apache-2.0
"""Types whose codes of four bits are looked up in a table of sixteen values: ``IQ4_NL/XS``, ``MXFP4``, ``NVFP4``.

Layouts: ``block_iq4_*``, ``block_mxfp4``, ``block_nvfp4`` of ggml-common.h; formulas: ``dequantize_row_*`` of
ggml-quants.c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.dequant.torch_ops.bits import NIBBLES, PAIRS, field, half, look_up, parts, planes


def iq4_nl(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: elements 0-15 in the low four bits, 16-31 in the high ones; ``d * value``."""
    _put_values(out, "IQ4_NL", planes(blocks, 2, 16, 16, NIBBLES, 0x0F), half(blocks, 0))


def iq4_xs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u16 scales_h; u8 scales_l[4], qs[128]``: ``d * (scale - 32) * value``, eight groups like ``IQ4_NL``.

    A scale has four bits in scales_l, the low ones of a byte first, and two above in scales_h, the lowest first.
    """
    above = parts(field(blocks, 2, 2), PAIRS, 0x03) << 4
    scales = parts(field(blocks, 4, 4), NIBBLES, 0x0F).flatten(1) | above.flatten(1)
    scale = half(blocks, 0) * (scales.view(torch.int8) - 32)
    _put_values(out, "IQ4_XS", planes(blocks, 8, 128, 16, NIBBLES, 0x0F), scale)


def mxfp4(blocks: Tensor, out: Tensor) -> None:
    """``u8 e, qs[16]``: as ``IQ4_NL``, the scale a power of two."""
    scale = look_up(constants.scales("MXFP4", blocks.device), field(blocks, 0, 1))
    _put_values(out, "MXFP4", planes(blocks, 1, 16, 16, NIBBLES, 0x0F), scale)


def nvfp4(blocks: Tensor, out: Tensor) -> None:
    """``u8 d[4], qs[32]``: four groups, elements 0-7 in the low four bits of eight bytes, 8-15 in the high ones."""
    scale = look_up(constants.scales("NVFP4", blocks.device), field(blocks, 0, 4))
    _put_values(out, "NVFP4", planes(blocks, 4, 32, 8, NIBBLES, 0x0F), scale)


def _put_values(out: Tensor, name: str, codes: Tensor, scale: Tensor) -> None:
    """Write the values of ``codes`` (words) times ``scale`` ``[n, groups]``."""
    torch.mul(
        look_up(constants.values(name, out.device), codes.view(torch.uint8)).view(*scale.shape, -1),
        scale.unsqueeze(2),
        out=out.view(*scale.shape, -1),
    )
