# SPDX-License-Identifier: Apache-2.0
"""The bytes of a tensor, whatever its dtype."""

from __future__ import annotations

import torch


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """``uint8 [nbytes]``: the bytes of a tensor's elements in their order, a view where it is contiguous."""
    if tensor.dtype.itemsize == 1:
        tensor = tensor.view(torch.uint8)  # copies of strided float8 are not everywhere
    # One of a single element is contiguous whatever its strides are, and not for a view of another dtype.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By bytes, not by value: NaN is equal to itself here, and not every dtype has a comparison."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(as_bytes(one.detach()), as_bytes(other.detach()))
