# SPDX-License-Identifier: Apache-2.0
"""Types whose codes of four bits are looked up in a table of sixteen values: ``IQ4_NL/XS``, ``MXFP4``, ``NVFP4``.

Layouts: ``block_iq4_*``, ``block_mxfp4``, ``block_nvfp4`` of ggml-common.h; formulas: ``dequantize_row_*`` of
ggml-quants.c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.dequant.torch_ops.bits import field, half, look_up, pick, words


def iq4_nl(blocks: Tensor, out: Tensor) -> None:
    """``half d; u8 qs[16]``: elements 0-15 in the low four bits, 16-31 in the high ones; ``d * value``."""
    _put_values(out.view(-1, 1, 2, 16), "IQ4_NL", words(blocks, 2, 16), half(blocks, 0).view(-1, 1, 1))


def iq4_xs(blocks: Tensor, out: Tensor) -> None:
    """``half d; u16 scales_h; u8 scales_l[4], qs[128]``: ``d * (scale - 32) * value``, eight groups like ``IQ4_NL``.

    A scale has four bits in scales_l, the low ones of a byte first, and two above in scales_h, the lowest first.
    """
    low, high = field(blocks, 4, 4), field(blocks, 2, 2).to(torch.int32)
    above = torch.cat([high >> shift for shift in (0, 2, 4, 6)], dim=1).view(-1, 4, 2).transpose(1, 2).reshape(-1, 8)
    scales = torch.stack([low & 0x0F, low >> 4], dim=2).view(-1, 8) | ((above & 0x03) << 4)
    scale = half(blocks, 0) * (scales - 32)
    _put_values(out.view(-1, 8, 2, 16), "IQ4_XS", words(blocks, 8, 128), scale.view(-1, 8, 1))


def mxfp4(blocks: Tensor, out: Tensor) -> None:
    """``u8 e, qs[16]``: as ``IQ4_NL``, the scale a power of two."""
    scale = look_up(constants.scales("MXFP4", blocks.device), field(blocks, 0, 1))
    _put_values(out.view(-1, 1, 2, 16), "MXFP4", words(blocks, 1, 16), scale.view(-1, 1, 1))


def nvfp4(blocks: Tensor, out: Tensor) -> None:
    """``u8 d[4], qs[32]``: four groups, elements 0-7 in the low four bits of eight bytes, 8-15 in the high ones."""
    scale = look_up(constants.scales("NVFP4", blocks.device), field(blocks, 0, 4))
    _put_values(out.view(-1, 4, 2, 8), "NVFP4", words(blocks, 4, 32), scale.view(-1, 4, 1))


def _put_values(target: Tensor, name: str, quants: Tensor, scale: Tensor) -> None:
    """Write both halves of each group: ``target [n, groups, 2, bytes of a group]``, ``scale [n, groups, 1]``."""
    values = constants.values(name, target.device)
    for at in range(2):
        codes = pick(quants, 4 * at, 0x0F).view(torch.uint8).view(target[:, :, at].shape)
        torch.mul(look_up(values, codes), scale, out=target[:, :, at])
