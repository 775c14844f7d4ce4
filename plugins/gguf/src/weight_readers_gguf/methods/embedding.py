# SPDX-License-Identifier: Apache-2.0
"""The quant method of embeddings whose weight is packed, and of language-model heads that share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods import compute
from weight_readers_gguf.methods.fit import Declared
from weight_readers_gguf.methods.layers import declared
from weight_readers_gguf.methods.linear import GGUFLinearMethod, layout_of

DTYPE = "embedding_dtype"
"""Attribute of a layer: the dtype of what `GGUFEmbeddingMethod.embedding` returns."""


class GGUFEmbeddingMethod(GGUFLinearMethod):
    """Packed rows are gathered first, and only those dequantized. `apply` multiplies with the same weight."""

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
        """As for a linear layer: ``input_size`` is the width, ``output_size`` the vocabulary, padded, of all ranks.

        A layer with ``org_vocab_size`` (engines pad the vocabulary) says with it how many rows the file has; the
        rows behind are zero. ``params_dtype`` is that of what `embedding` returns.
        """
        if params_dtype not in compute.ACTIVATIONS:
            raise TypeError(f"embedding {self.prefix!r} gives float32, float16 or bfloat16, not {params_dtype}")
        if getattr(layer, "max_norm", None) is not None:
            raise TargetMismatchError(
                f"embedding {self.prefix!r} has max_norm, which would rewrite rows of its weight, and they are packed",
                fix="Have the tensor dequantized when it is read",
            )
        sizes = declared(self.prefix, layer, input_size_per_partition, output_partition_sizes, input_size, output_size)
        self._register(layer, _with_vocabulary(sizes, layer), extra)
        setattr(layer, DTYPE, params_dtype)

    def embedding(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """``ids [...] -> [..., width]`` in ``params_dtype``. Raises IndexError for an id without a row."""
        return compute.embedding(ids, layer.get_parameter("qweight"), layout_of(layer), getattr(layer, DTYPE))


def _with_vocabulary(sizes: Declared, layer: nn.Module) -> Declared:
    rows = getattr(layer, "org_vocab_size", sizes.whole_rows)
    return replace(sizes, replicas=(), vocabulary=min(rows, sizes.whole_rows))
