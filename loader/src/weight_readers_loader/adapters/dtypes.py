# SPDX-License-Identifier: Apache-2.0
"""The adapter of dtypes: floating-point tensors converted, with islands that keep theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import torch

from weight_readers import TensorMeta
from weight_readers_loader.adapters.made import (
    Adapter,
    Made,
    Tensors,
    check_patterns,
    is_packed,
    matches,
    passed,
    refused,
    texts,
)
from weight_readers_loader.wording import counted

DTYPES = {name: name for name in ("float64", "float32", "bfloat16", "float16")} | {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""What a dtype may be called, and the name that torch has for it. Smaller ones mean nothing without their scales."""


class Dtype(Adapter):
    """Tensors of ``float64``, ``float32``, ``bfloat16`` and ``float16`` become ``dtype``, as `torch.Tensor.to` rounds.

    keep: patterns of names (``*``, ``?``) that keep the dtype of the file: the float32 islands of a bfloat16 model.
    only: patterns of the names that are converted; by default all others.

    Whole numbers, truths, 8-bit floats and packed tensors stay. Raises AdapterError for a pattern that no tensor has,
    and, while reading, for a tensor with a number beyond the range of ``dtype``.
    """

    def __init__(
        self,
        dtype: Literal["float64", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"],
        *,
        keep: Iterable[str] = (),
        only: Iterable[str] = ("*",),
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        self.dtype = DTYPES[dtype]
        self.keep, self.only = texts("keep", keep), texts("only", only)

    def plan(self, tensors: Tensors) -> Iterator[Made]:
        to: torch.dtype = getattr(torch, self.dtype)
        for meta in tensors.values():
            yield self._converted(meta, to) if self._converts(meta) else passed(meta)

    def check(self, tensors: Tensors) -> None:
        check_patterns("Dtype keep", self.keep, tensors)
        check_patterns("Dtype only", self.only, tensors)

    def _converts(self, meta: TensorMeta) -> bool:
        floating = meta.dtype in DTYPES and meta.dtype != self.dtype and not is_packed(meta)
        return floating and matches(meta.name, self.only) and not matches(meta.name, self.keep)

    def _converted(self, meta: TensorMeta, to: torch.dtype) -> Made:
        elements = 1
        for size in meta.shape:
            elements *= size
        new = replace(meta, dtype=self.dtype, nbytes=elements * to.itemsize)
        return Made(meta=new, sources=(meta.name,), make=lambda tensor: _rounded(tensor, to, meta))


def _rounded(tensor: torch.Tensor, to: torch.dtype, meta: TensorMeta) -> torch.Tensor:
    """``tensor`` in another dtype. Raises AdapterError where a number of it is beyond that (B043)."""
    made = tensor.to(to)
    if torch.finfo(to).max < torch.finfo(tensor.dtype).max:
        beyond = torch.isinf(made)
        if beyond.any() and (count := int(torch.isfinite(tensor[beyond]).sum())):
            fix = f"keep=[{meta.name!r}] (--keep-dtype {meta.name}) leaves its dtype, and bfloat16 has the range"
            largest = torch.finfo(to).max
            what = f"{counted(count, 'number')} of it would become infinite as {str(to).removeprefix('torch.')}"
            raise refused(what, meta, expected=f"numbers up to {largest:g}", found=meta.dtype, fix=fix)
    return made
