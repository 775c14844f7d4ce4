# SPDX-License-Identifier: Apache-2.0
"""Tables as tensors of the device, eight codes to a word, so that one look-up fetches eight elements."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weight_readers_gguf.dequant import tables


@cache
def shifts(each: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """By how much to shift, as a tensor ``[len(each)]``."""
    return _tensor(np.array(each), device).to(dtype)


@cache
def powers_of_three(device: torch.device) -> Tensor:
    """1, 3, 9, 27, 81: uint8 ``[5, 1]``."""
    return _tensor(np.array([[1], [3], [9], [27], [81]], np.uint8), device)


@cache
def grid(type_name: str, device: torch.device) -> Tensor:
    """Codebook entries as bytes: int64 ``[entries]``, of the types with entries of four elements int32."""
    codes = tables.grid(type_name).astype(np.int8)
    return _tensor(codes.view(f"<i{codes.shape[1]}").ravel(), device)


@cache
def grid_with_delta(type_name: str, device: torch.device) -> Tensor:
    """Eight times entry plus 1/8, then eight times entry less 1/8, as bytes: int64 ``[2 * entries]``."""
    codes = tables.grid(type_name).astype(np.int8) * np.int8(8)
    return _tensor(np.concatenate([codes + np.int8(1), codes - np.int8(1)]).view("<i8").ravel(), device)


@cache
def signs(device: torch.device) -> Tensor:
    """Bits as bytes, 0xFF where set: int64 ``[256]``."""
    return _tensor(_sign_words(), device)


@cache
def even_signs(device: torch.device) -> Tensor:
    """`signs` by the code of seven bits: int64 ``[128]``."""
    return _tensor(_sign_words()[tables.ksigns()], device)


@cache
def fifth_bits(device: torch.device) -> Tensor:
    """Bits as bytes, 0x10 where set: int64 ``[256]``."""
    return _tensor((tables.bits_to_bytes() * np.uint8(0x10)).view("<i8").ravel(), device)


@cache
def plus_or_minus(device: torch.device) -> Tensor:
    """Bits as bytes, 1 where set and -1 where not: int64 ``[256]``."""
    return _tensor((tables.bits_to_bytes().astype(np.int8) * np.int8(2) - np.int8(1)).view("<i8").ravel(), device)


@cache
def pairs_less_one(device: torch.device) -> Tensor:
    """The four pairs of bits of a byte, less one, as bytes, the lowest first: int32 ``[256]``."""
    byte = np.arange(256)[:, None]
    return _tensor(((byte >> np.array([0, 2, 4, 6]) & 3) - 1).astype(np.int8).view("<i4").ravel(), device)


@cache
def values(type_name: str, device: torch.device) -> Tensor:
    """What a code of four bits stands for: float32 ``[16]``."""
    return _tensor(tables.values(type_name).astype(np.float32), device)


@cache
def scales(type_name: str, device: torch.device) -> Tensor:
    """What the byte of a scale stands for: float32 ``[256]``."""
    return _tensor(tables.scales(type_name), device)


def _sign_words() -> Any:
    return (tables.bits_to_bytes() * np.uint8(0xFF)).view("<i8").ravel()


def _tensor(array: Any, device: torch.device) -> Tensor:
    # The cache outlives the mode it is filled in, and a tensor of inference mode is of no use outside of it.
    with torch.inference_mode(False):
        return torch.tensor(array, device=device)
