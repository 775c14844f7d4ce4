# SPDX-License-Identifier: Apache-2.0
"""Dequantization by Triton kernels, for CUDA. Triton is imported when the first tensor is dequantized."""

from __future__ import annotations

import torch

from weight_readers_gguf.dequant.installed import is_installed
from weight_readers_gguf.types import DEQUANTIZABLE, GGMLType

__all__ = ["SUPPORTED", "absent", "dequantize_into", "start"]

SUPPORTED: frozenset[str] = DEQUANTIZABLE


def absent() -> str | None:
    """Why this backend cannot be used here, or None. That there is a CUDA device is for the tensor to show."""
    return None if is_installed("triton") else "triton is not installed (CUDA builds of torch bring it along)"


def start(kind: GGMLType) -> None:
    """Import triton and have it find the device; raises whatever it does where it is broken (no C compiler, say)."""
    from weight_readers_gguf.dequant.triton_kernels import launch

    launch.start()


def dequantize_into(packed: torch.Tensor, type: GGMLType, out: torch.Tensor) -> None:  # noqa: A002
    """Write the elements of ``packed`` (uint8, whole blocks) into ``out`` (float32, bfloat16 or float16).

    Both are contiguous and on one CUDA device, whose current stream does the work; the caller is not kept waiting.
    Math is in float32, as ggml's C code does it, with one rounding to ``out``'s dtype; of NaN only the fact is kept.
    ValueError for tensors elsewhere, ImportError without triton.
    """
    from weight_readers_gguf.dequant.triton_kernels import launch

    if out.device != packed.device or (out.device.type != "cuda" and not launch.interpreted()):
        raise ValueError(
            f"the triton backend takes tensors of one CUDA device, not packed on {packed.device} and out on "
            f"{out.device}; move them there, or take backend='torch'"
        )
    if launch.interpreted() and out.dtype == torch.bfloat16:
        # Triton's interpreter truncates to bfloat16, where a device rounds to nearest.
        wide = torch.empty_like(out, dtype=torch.float32)
        launch.launch(packed, type, wide)
        out.copy_(wide)
    else:
        launch.launch(packed, type, out)
