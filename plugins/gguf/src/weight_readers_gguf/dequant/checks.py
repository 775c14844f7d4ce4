# SPDX-License-Identifier: Apache-2.0
"""What the arguments of `dequantize` have to be, and what is said where they are not."""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.types import ACTIVATIONS, BY_NAME, DEQUANTIZABLE, REMOVED, TYPES, GGMLType

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def resolve_type(ggml_type: int | str) -> GGMLType:
    """The packed type with that id or name; ValueError says which there are, and why it is none of them."""
    if not isinstance(ggml_type, str) and not hasattr(ggml_type, "__index__"):
        raise TypeError(f"ggml_type must be the id or the name of a type, not {ggml_type!r}; {_known()}")
    kind = BY_NAME.get(ggml_type) if isinstance(ggml_type, str) else TYPES.get(ggml_type)
    if kind is None:
        raise ValueError(f"{_unknown(ggml_type)}; {_known()}")
    if kind.name in ACTIVATIONS:
        raise ValueError(f"type {kind.name} (id {kind.id}) holds intermediate results, not weights; {_known()}")
    if kind.dtype is not None:
        raise ValueError(
            f"type {kind.name} (id {kind.id}) is not packed: its bytes are numbers as they are. "
            f"Use packed.view(torch.{kind.dtype})"
        )
    return kind


def _unknown(ggml_type: int | str) -> str:
    removed = None if isinstance(ggml_type, str) else REMOVED.get(ggml_type)
    if removed is not None:
        return f"ggml has given up type {removed} (id {ggml_type}): quantize the weights anew"
    return f"unknown ggml type {ggml_type!r}"


def _known() -> str:
    names = sorted(DEQUANTIZABLE, key=lambda name: BY_NAME[name].id)
    return "types that can be dequantized: " + ", ".join(f"{name} ({BY_NAME[name].id})" for name in names)


def check_packed(packed: Tensor, kind: GGMLType) -> tuple[int, ...]:
    """The shape of the result; TypeError for what is not bytes, ValueError for a row that is not whole blocks."""
    if not isinstance(packed, Tensor):
        raise TypeError(f"packed is a {type(packed).__name__}, not a tensor")
    if packed.dtype != torch.uint8:
        raise TypeError(f"packed {kind.name} is of dtype {packed.dtype}; packed blocks are torch.uint8")
    if packed.ndim == 0:
        raise ValueError(f"packed {kind.name} has no dimension; expected [..., row_bytes]")
    # No divmod: a tracer has sizes that are tensors.
    blocks, rest = packed.shape[-1] // kind.nbytes, packed.shape[-1] % kind.nbytes
    if rest:
        raise ValueError(
            f"a packed row of {packed.shape[-1]} bytes is not whole blocks of {kind.name}: {kind.nbytes} bytes each, "
            f"for {kind.block} elements; {rest} bytes are left over"
        )
    return (*packed.shape[:-1], blocks * kind.block)


def resolve_dtype(dtype: torch.dtype | None, out: Tensor | None) -> torch.dtype:
    """``dtype``, or by default that of ``out``, or float32."""
    if out is not None and not isinstance(out, Tensor):
        raise TypeError(f"out must be a tensor to write to, or None, not {out!r}")
    if dtype is None:
        dtype = torch.float32 if out is None else out.dtype
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be one of {', '.join(map(str, DTYPES))}, not {dtype!r}")
    if dtype not in DTYPES:
        raise TypeError(f"cannot dequantize to {dtype}; possible: {', '.join(map(str, DTYPES))}")
    return dtype


def check_out(out: Tensor, shape: tuple[int, ...], dtype: torch.dtype, packed: Tensor) -> None:
    """TypeError or ValueError where ``out`` is not what the result can be written to."""
    if out.dtype != dtype:
        raise TypeError(f"out is of dtype {out.dtype}, and {dtype} is asked for")
    if tuple(out.shape) != shape:
        raise ValueError(f"out has shape {list(out.shape)}, and the result {list(shape)}")
    if out.device != packed.device:
        raise ValueError(f"out is on {out.device}, and packed on {packed.device}")
    if not out.is_contiguous():
        raise ValueError(f"out is not contiguous: its strides are {list(out.stride())}")
