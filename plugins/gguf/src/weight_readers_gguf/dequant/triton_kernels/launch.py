# SPDX-License-Identifier: Apache-2.0
"""From a type's name to its kernel, launched on the tensor's device and its current stream."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton

from weight_readers_gguf.dequant.triton_kernels import codebooks, four_bits, grids, k_quants, simple, ternary
from weight_readers_gguf.types import GGMLType

ELEMENTS = 2048
"""What a program writes: 16 elements for each of its 128 threads.

With 32 for each, loads and stores want other layouts, and values go through shared memory in between.
"""


class Kernel(NamedTuple):
    """A kernel, and the type whose codebook it takes."""

    function: Any
    codebook: str | None = None


KERNELS: Mapping[str, Kernel] = {
    "Q1_0": Kernel(simple.q1_0),
    "Q2_0": Kernel(simple.q2_0),
    "Q4_0": Kernel(simple.q4_0),
    "Q4_1": Kernel(simple.q4_1),
    "Q5_0": Kernel(simple.q5_0),
    "Q5_1": Kernel(simple.q5_1),
    "Q8_0": Kernel(simple.q8_0),
    "Q2_K": Kernel(k_quants.q2_k),
    "Q3_K": Kernel(k_quants.q3_k),
    "Q4_K": Kernel(k_quants.q4_k),
    "Q5_K": Kernel(k_quants.q5_k),
    "Q6_K": Kernel(k_quants.q6_k),
    "TQ1_0": Kernel(ternary.tq1_0),
    "TQ2_0": Kernel(ternary.tq2_0),
    "MXFP4": Kernel(four_bits.mxfp4),
    "NVFP4": Kernel(four_bits.nvfp4),
    "IQ4_NL": Kernel(four_bits.iq4_nl, "IQ4_NL"),
    "IQ4_XS": Kernel(four_bits.iq4_xs, "IQ4_NL"),
    "IQ1_S": Kernel(codebooks.iq1_s, "IQ1_S"),
    "IQ1_M": Kernel(codebooks.iq1_m, "IQ1_S"),
    "IQ2_XXS": Kernel(codebooks.iq2_xxs, "IQ2_XXS"),
    "IQ2_XS": Kernel(codebooks.iq2_xs, "IQ2_XS"),
    "IQ2_S": Kernel(codebooks.iq2_s, "IQ2_S"),
    "IQ3_XXS": Kernel(codebooks.iq3_xxs, "IQ3_XXS"),
    "IQ3_S": Kernel(codebooks.iq3_s, "IQ3_S"),
}


def start() -> None:
    """Load Triton's driver, which compiles a part of itself the first time; its interpreter needs none."""
    if not interpreted():
        triton.runtime.driver.active.get_current_device()


def launch(packed: torch.Tensor, kind: GGMLType, out: torch.Tensor) -> None:
    """Decode all blocks of ``packed`` into ``out``, both contiguous on one device; nothing waits for the device."""
    count = out.numel() // kind.block
    if count == 0:
        return
    kernel = KERNELS[kind.name]
    blocks = ELEMENTS // kind.block
    grid = (-(-count // blocks),)
    with _current(out.device):
        codebook = () if kernel.codebook is None else (grids.on_device(kernel.codebook, out.device),)
        # A fused multiply-add rounds once where ggml rounds twice.
        kernel.function[grid](packed, out, *codebook, count, blocks=blocks, num_warps=4, enable_fp_fusion=False)


def interpreted() -> bool:
    """Whether the kernels were defined for Triton's interpreter (``TRITON_INTERPRET=1``), which takes any tensor."""
    return not isinstance(simple.q4_0, triton.JITFunction)


def _current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
