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
    texts,
)

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

    Whole numbers, truths, 8-bit floats and packed tensors stay. Raises AdapterError for a pattern that no tensor has.
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
        return Made(meta=new, sources=(meta.name,), make=lambda tensor: tensor.to(to))
