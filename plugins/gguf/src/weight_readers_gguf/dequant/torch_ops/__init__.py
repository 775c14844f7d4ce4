# SPDX-License-Identifier: Apache-2.0
"""Dequantization in torch operations: every type, every device, nothing to compile.

The blocks are decoded a chunk at a time, so that what lies between the bytes and the result stays in the cache (and
bounded on a GPU); the threads are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weight_readers_gguf.dequant.torch_ops import four_bit, iq, k_quants, legacy, ternary
from weight_readers_gguf.types import GGMLType

__all__ = ["SUPPORTED", "absent", "dequantize_into", "start"]

_DECODERS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "IQ1_M": iq.iq1_m,
    "IQ1_S": iq.iq1_s,
    "IQ2_S": iq.iq2_s,
    "IQ2_XS": iq.iq2_xs,
    "IQ2_XXS": iq.iq2_xxs,
    "IQ3_S": iq.iq3_s,
    "IQ3_XXS": iq.iq3_xxs,
    "IQ4_NL": four_bit.iq4_nl,
    "IQ4_XS": four_bit.iq4_xs,
    "MXFP4": four_bit.mxfp4,
    "NVFP4": four_bit.nvfp4,
    "Q1_0": legacy.q1_0,
    "Q2_0": legacy.q2_0,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_0": legacy.q4_0,
    "Q4_1": legacy.q4_1,
    "Q4_K": k_quants.q4_k,
    "Q5_0": legacy.q5_0,
    "Q5_1": legacy.q5_1,
    "Q5_K": k_quants.q5_k,
    "Q6_K": k_quants.q6_k,
    "Q8_0": legacy.q8_0,
    "TQ1_0": ternary.tq1_0,
    "TQ2_0": ternary.tq2_0,
}
SUPPORTED = frozenset(_DECODERS)

# Elements at a time. On a CPU 4 MiB of float32: with less, the overhead of some thirty operations shows; with more,
# what lies between them falls out of the cache. Elsewhere what keeps the device busy.
_ON_CPU = 1 << 20
_ELSEWHERE = 1 << 24


def absent() -> str | None:
    """Why this backend cannot run here: it always can."""
    return None


def start(kind: GGMLType) -> None:
    """Nothing to get ready."""


def dequantize_into(packed: Tensor, kind: GGMLType, out: Tensor) -> None:
    """Write the elements of ``packed`` to ``out``, computed in float32 and rounded once where ``out`` is narrower.

    ``packed`` is contiguous uint8 of whole blocks of ``kind``; ``out`` contiguous float32, bfloat16 or float16 of as
    many elements, on the same device.
    """
    decode = _DECODERS[kind.name]
    blocks, target = packed.view(-1, kind.nbytes), out.view(-1, kind.block)
    at_once = max(1, (_ON_CPU if packed.device.type == "cpu" else _ELSEWHERE) // kind.block)
    scratch = None if out.dtype == torch.float32 else _scratch(target, at_once)
    for begin in range(0, blocks.shape[0], at_once):
        some, where = blocks[begin : begin + at_once], target[begin : begin + at_once]
        decoded = where if scratch is None else scratch[: some.shape[0]]
        decode(some, decoded)
        if scratch is not None:
            where.copy_(decoded)


def _scratch(target: Tensor, at_once: int) -> Tensor:
    rows = min(at_once, target.shape[0])
    return torch.empty((rows, target.shape[1]), dtype=torch.float32, device=target.device)
