# SPDX-License-Identifier: Apache-2.0
"""Which tensors, and which elements of one, may share memory: by their addresses, without a look at values."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def span_of(tensor: torch.Tensor) -> tuple[str, int, int] | None:
    """Device, first and last address. None for what has no memory."""
    if tensor.is_meta or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return None
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    begin = tensor.data_ptr()
    return str(tensor.device), begin, begin + reach * tensor.element_size()


def may_share_elements(tensor: torch.Tensor) -> bool:
    """Whether some dimension, by growing stride, steps no further than all smaller ones together reach."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with memory of their own where a file has them over one storage, or an element for many."""
    spans = sorted((*span, name) for name, tensor in tensors.items() if (span := span_of(tensor)) is not None)
    shared = {name for name, tensor in tensors.items() if may_share_elements(tensor)}
    device, reached = "", 0
    for where, begin, end, name in spans:
        if where == device and begin < reached:
            shared.add(name)
        device, reached = where, end if where != device else max(reached, end)
    return {
        name: tensor.clone(memory_format=torch.contiguous_format) if name in shared else tensor
        for name, tensor in tensors.items()
    }
