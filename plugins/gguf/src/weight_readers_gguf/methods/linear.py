# SPDX-License-Identifier: Apache-2.0
"""The quant method of linear layers whose weight is packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods import compute, low_rank
from weight_readers_gguf.methods.fit import Declared, Source, fitted
from weight_readers_gguf.methods.layers import declared, rank_of
from weight_readers_gguf.methods.loading import Shard, ShardLoader
from weight_readers_gguf.methods.segments import Layout
from weight_readers_gguf.methods.workspace import Workspace

LAYOUT = "packed_layout"
"""Attribute of a layer: the `Layout` of its ``qweight``."""


class GGUFLinearMethod:
    """Packed weight, activations in float32, float16 or bfloat16: dequantize to their dtype, then ``F.linear``.

    ``sources`` are the layer's tensors in its own order: one, or the shards of a fused layer, which may differ in
    type. ``workspace`` bounds the memory of dense weights; layers of one config share it.
    """

    def __init__(self, prefix: str, sources: Sequence[Source], workspace: Workspace | None = None) -> None:
        self.prefix = prefix
        self.sources = tuple(sources)
        self.workspace = workspace or Workspace()

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
        """Register ``qweight``: uint8 ``[rows, row_bytes]``, or flat where the shards differ in type.

        Sizes are in elements, ``input_size`` and ``output_size`` over all ranks. The parameter has plain attributes:
        ``ggml_type`` (None where mixed), ``logical_shape``, ``segments``, and ``input_dim`` and ``output_dim`` where
        it is a matrix; ``extra`` is set on it as well. Its ``weight_loader`` is a `ShardLoader`, unless ``extra``
        has one and the parameter is a matrix. ``params_dtype`` has no part in it: the weight takes the dtype of each
        input. Nothing is allocated where `TargetMismatchError` is raised: the
        logical shape differs from the file's, or a partition of the input cuts a block.
        """
        sizes = declared(self.prefix, layer, input_size_per_partition, output_partition_sizes, input_size, output_size)
        self._register(layer, sizes, extra)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x [..., columns] -> [..., rows]`` in the dtype of ``x``, with the low-rank addition if there is one."""
        out = compute.linear(x, layer.get_parameter("qweight"), layout_of(layer), bias, self.workspace)
        return low_rank.added(layer, x, out)

    def load_shard(
        self, layer: nn.Module, tensor: torch.Tensor, shard: Shard = None, *, rank: int | None = None
    ) -> None:
        """Copy a tensor of the checkpoint, whole or this rank's part of it, to its place; see `ShardLoader`."""
        rank = rank_of(layer) if rank is None else rank
        ShardLoader(layout_of(layer), rank)(layer.get_parameter("qweight"), tensor, shard)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Nothing: packed bytes are used as they are. Engines call it."""

    def attach_low_rank(self, layer: nn.Module, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> None:
        """Have `apply` add ``scale * x @ a.T @ b.T``; ``a [rank, columns]``, ``b [rows, rank]``, one at a time.

        Raises `TargetMismatchError` for other shapes, ValueError where one is attached. ``qweight`` never changes.
        """
        low_rank.attach(layer, layout_of(layer), a, b, scale)

    def detach_low_rank(self, layer: nn.Module) -> bool:
        """Undo `attach_low_rank`; False where nothing was attached."""
        return low_rank.detach(layer)

    def release(self) -> None:
        """Give back the memory that the workspace holds, that of other layers of the config too."""
        self.workspace.release()

    def _register(self, layer: nn.Module, sizes: Declared, extra: dict[str, Any]) -> None:
        layout = fitted(sizes, self.sources)
        self._check_workspace(layout)
        # Zero bytes are zeros in every type: rows that no tensor fills (a padded vocabulary) must not be noise.
        make = torch.empty if sizes.vocabulary is None else torch.zeros
        qweight = nn.Parameter(make(layout.stored_shape, dtype=torch.uint8), requires_grad=False)
        for name, value in _attributes(layout, rank_of(layer), extra).items():
            setattr(qweight, name, value)
        layer.register_parameter("qweight", qweight)
        setattr(layer, LAYOUT, layout)

    def _check_workspace(self, layout: Layout) -> None:
        row = layout.columns * torch.float32.itemsize
        if row > self.workspace.limit:
            raise TargetMismatchError(
                f"one row of layer {self.prefix!r} takes {row} bytes as float32, and the workspace has"
                f" {self.workspace.limit}",
                fix=f"Set workspace_bytes to at least {row}",
            )


def layout_of(layer: nn.Module) -> Layout:
    """The layout that ``create_weights`` left on the layer."""
    layout = getattr(layer, LAYOUT, None)
    if not isinstance(layout, Layout):
        raise TypeError(f"{type(layer).__name__} has no packed weight: create_weights was not called for it")
    return layout


def _attributes(layout: Layout, rank: int | None, extra: dict[str, Any]) -> dict[str, Any]:
    kind = layout.type
    loader = ShardLoader(layout, rank)
    own = {
        "ggml_type": None if kind is None else kind.id,
        "logical_shape": layout.shape,
        "segments": layout.segments,
    }
    if kind is None:  # a loader that cuts along dimensions would cut the flat buffer anywhere
        return {**extra, **own, "weight_loader": loader}
    return {"weight_loader": loader, **extra, **own, "input_dim": 1, "output_dim": 0}
