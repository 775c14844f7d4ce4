# SPDX-License-Identifier: Apache-2.0
"""Dequantization as one operator of torch, so that torch.compile sees a plain uint8 tensor and breaks no graph.

A tensor subclass breaks graphs instead (huggingface/diffusers#10795, city96/ComfyUI-GGUF#243).
"""

from __future__ import annotations

import torch

from weight_readers_gguf.dequant.checks import check_packed, resolve_dtype, resolve_type
from weight_readers_gguf.dequant.dispatch import compute

__all__ = ["dequantize"]


def _dequantize(packed: torch.Tensor, ggml_type: int, dtype: torch.dtype) -> torch.Tensor:
    kind = resolve_type(ggml_type)
    check_packed(packed, kind)
    return compute(packed, kind, resolve_dtype(dtype, None))


def _shape_only(packed: torch.Tensor, ggml_type: int, dtype: torch.dtype) -> torch.Tensor:
    kind = resolve_type(ggml_type)
    shape = (*packed.shape[:-1], packed.shape[-1] // kind.nbytes * kind.block)
    return packed.new_empty(shape, dtype=resolve_dtype(dtype, None))


# A module that is loaded again keeps its names. Defining an operator anew would take it away from those who hold the
# first one, and they would crash.
if "_definition" not in globals():
    # The schema in words, since torch before 2.6 reads no postponed annotations.
    _definition = torch.library.custom_op(
        "weight_readers_gguf::dequantize",
        _dequantize,
        mutates_args=(),
        device_types=("cpu", "cuda"),
        schema="(Tensor packed, int ggml_type, ScalarType dtype) -> Tensor",
    )
    _definition.register_fake(_shape_only)


def dequantize(packed: torch.Tensor, ggml_type: int, dtype: torch.dtype) -> torch.Tensor:
    """`weight_readers_gguf.dequant.dequantize` by its best backend, as an operator that tracers see.

    ``packed`` is uint8 ``[..., row_bytes]``, ``ggml_type`` an id; the same as
    ``torch.ops.weight_readers_gguf.dequantize``, which is looked up at each call: an import of another copy of this
    module defines it anew.
    """
    found: torch.Tensor = torch.ops.weight_readers_gguf.dequantize(packed, ggml_type, dtype)
    return found
