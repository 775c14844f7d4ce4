# SPDX-License-Identifier: Apache-2.0
"""The quant method of linear layers whose weight a GGUF file holds as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from weight_readers_gguf.methods.fit import Source, plain_fitted
from weight_readers_gguf.methods.layers import declared


class UnquantizedLinearMethod:
    """A parameter ``weight`` in the dtype that the model declares, and ``F.linear``."""

    def __init__(self, prefix: str, sources: Sequence[Source]) -> None:
        self.prefix = prefix
        self.sources = tuple(sources)

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: Sequence[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        """Register ``weight`` ``[rows, columns]``; `TargetMismatchError` where the file has another shape."""
        sizes = declared(self.prefix, layer, input_size_per_partition, output_partition_sizes, input_size, output_size)
        weight = nn.Parameter(torch.empty(plain_fitted(sizes, self.sources), dtype=params_dtype), requires_grad=False)
        for name, value in {**extra, "input_dim": 1, "output_dim": 0}.items():
            setattr(weight, name, value)
        layer.register_parameter("weight", weight)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x [..., columns] -> [..., rows]``; the bias takes part in the dtype of ``x``."""
        return functional.linear(x, layer.get_parameter("weight"), None if bias is None else bias.to(x.dtype))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Nothing to do. Engines call it."""
