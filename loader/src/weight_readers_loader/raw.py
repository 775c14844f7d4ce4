# SPDX-License-Identifier: Apache-2.0
"""The bytes of a tensor, whatever its dtype."""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """``uint8 [nbytes]``: the bytes of a tensor's elements in their order, a view where it is contiguous."""
    if tensor.dtype.itemsize == 1:
        tensor = tensor.view(torch.uint8)  # copies of strided float8 are not everywhere
    # One of a single element is contiguous whatever its strides are, and not for a view of another dtype.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the same strides in integers, which have sums: not every dtype does. Of one number per element, and
    of two per complex128."""
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.dtype.itemsize])


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By bytes, not by value: NaN is equal to itself here, and not every dtype has a comparison."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(as_bytes(one.detach()), as_bytes(other.detach()))
