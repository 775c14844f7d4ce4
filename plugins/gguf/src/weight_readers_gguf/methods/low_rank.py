# SPDX-License-Identifier: Apache-2.0
"""A low-rank addition (LoRA) beside a packed weight, whose bytes stay as they are.

Merging into the weight would mean to quantize it anew. Patches of packed data were applied twice, or to the wrong
shape (city96/ComfyUI-GGUF#31, #98): here the addition is two small matrices of their own.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods.segments import Layout

A, B, SCALE = "lora_a", "lora_b", "lora_scale"


def attach(layer: nn.Module, layout: Layout, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
    """Add ``scale * x @ a.T @ b.T`` to the layer's output; ``a [rank, columns]``, ``b [rows, rank]``."""
    if attached(layer):
        raise ValueError(f"layer {layout.prefix!r} has a low-rank addition already. Detach it first")
    for name, tensor in (("a", a), ("b", b)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} of the low-rank addition to {layout.prefix!r} must be a tensor, not {tensor!r}")
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(f"the scale of the low-rank addition to {layout.prefix!r} must be a number, not {scale!r}")
    if not math.isfinite(scale):
        raise ValueError(f"the scale of the low-rank addition to {layout.prefix!r} must be finite, not {scale}")
    rank = a.shape[0] if a.dim() == 2 else 0
    wanted = {A: (rank, layout.columns), B: (layout.rows, rank)}
    wrong = [
        (f"{layout.prefix}.{name}", str(list(tensor.shape)), str(list(wanted[name])))
        for name, tensor in ((A, a), (B, b))
        if tuple(tensor.shape) != wanted[name] or not tensor.is_floating_point() or rank == 0
    ]
    if wrong:
        listed = "; ".join(f"{name} is {found}, expected floating-point {want}" for name, found, want in wrong)
        raise TargetMismatchError(f"the low-rank addition does not fit its layer: {listed}", shapes=wrong)
    if a.is_meta or b.is_meta:
        # On a CPU torch adds them to numbers all the same, and gives what happens to lie in memory.
        raise ValueError(f"the low-rank addition to {layout.prefix!r} has no memory: it is on the device 'meta'")
    # Buffers follow the layer to its device, and are no part of its state.
    layer.register_buffer(A, a, persistent=False)
    layer.register_buffer(B, b, persistent=False)
    setattr(layer, SCALE, float(scale))


def detach(layer: nn.Module) -> bool:
    """Remove the addition; False where there was none."""
    if not attached(layer):
        return False
    for name in (A, B, SCALE):
        delattr(layer, name)
    return True


def attached(layer: nn.Module) -> bool:
    return getattr(layer, A, None) is not None


def added(layer: nn.Module, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``out`` with the layer's addition, where it has one."""
    if not attached(layer):
        return out
    a, b = layer.get_buffer(A).to(out.dtype), layer.get_buffer(B).to(out.dtype)
    return torch.add(out, functional.linear(functional.linear(x.to(out.dtype), a), b), alpha=getattr(layer, SCALE))
