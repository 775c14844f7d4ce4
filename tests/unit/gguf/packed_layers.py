# SPDX-License-Identifier: Apache-2.0
"""Layers as engines have them, weights for them in GGUF files, and what they must compute by ggml's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from unit.gguf.gguf_bytes import write_gguf
from unit.gguf.oracles import ggml
from unit.gguf.random_blocks import BYTES, HALVES, SPREAD

from weight_readers_gguf.methods import GGUFConfig
from weight_readers_gguf.types import BY_NAME

ALL = sorted(BY_NAME[name].id for name in BY_NAME if BY_NAME[name].is_packed and name not in ("Q8_1", "Q8_K"))
PLAIN = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_EIGHTH = 0x3000  # of float16


def blocks(name: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """uint8 ``[rows, row_bytes]``: random codes under scales of 1/8, so that no sum overflows in float16."""
    kind = BY_NAME[name]
    random = np.random.default_rng([kind.id, seed])
    found = random.integers(0, 256, (rows * columns // kind.block, kind.nbytes), dtype=np.uint8)
    for at in HALVES.get(name, ()):
        found[:, at], found[:, at + 1] = _EIGHTH & 0xFF, _EIGHTH >> 8
    for shift, at in zip((0, 4, 8, 12), SPREAD.get(name, ()), strict=False):
        found[:, at] = found[:, at] & 0x0F | (_EIGHTH >> shift & 0x0F) << 4
    for at in BYTES.get(name, ()):
        found[:, at] = 0x20 if name == "NVFP4" else 0x7C
    return torch.from_numpy(found.reshape(rows, columns // kind.block * kind.nbytes))


def dense(name: str, packed: torch.Tensor) -> torch.Tensor:
    """The float32 numbers that ggml makes of the bytes."""
    return torch.from_numpy(ggml(name, packed.numpy()))


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Small integers as float32: their sums are exact in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


Held = Mapping[str, tuple[str, torch.Tensor]]
"""Tensor name -> (type name, packed bytes or plain numbers)."""


def write_file(path: Path, tensors: Held, metadata: Mapping[str, Any] | None = None) -> Path:
    entries = {}
    for name, (type_name, tensor) in tensors.items():
        kind = BY_NAME[type_name]
        raw = tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor
        shape = list(tensor.shape)
        if kind.is_packed:
            shape[-1] = shape[-1] // kind.nbytes * kind.block
        entries[name] = (kind.id, shape, raw.numpy().tobytes())
    return write_gguf(path, entries, metadata)


def config_of(folder: Path, tensors: Held, **options: Any) -> GGUFConfig:
    """The config of a file with these tensors."""
    return GGUFConfig.from_file(write_file(folder / "model.gguf", tensors), **options)


class EngineLinear(nn.Module):
    """A linear layer as engines have it: sizes by attribute, split over ``tp_size`` ranks by column or by row."""

    def __init__(
        self,
        columns: int,
        outputs: Sequence[int],
        *,
        tp_rank: int | None = None,
        tp_size: int = 1,
        by_row: bool = False,
        kv_replicas: int = 1,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = columns, sum(outputs)
        self.columns_here = columns // tp_size if by_row else columns
        world = 1 if by_row else tp_size
        self.output_partition_sizes = [rows // world for rows in outputs]
        if kv_replicas > 1:
            self.num_kv_head_replicas = kv_replicas
            self.output_partition_sizes[1:] = [rows * kv_replicas // world for rows in outputs[1:]]
            self.output_size = sum(self.output_partition_sizes) * world
        if tp_rank is not None:
            self.tp_rank = tp_rank


class EngineEmbedding(nn.Module):
    """An embedding as engines have it: ``org_vocab_size`` rows of the file, padded, one part of them per rank."""

    def __init__(self, vocabulary: int, width: int, *, padded: int, tp_rank: int = 0, tp_size: int = 1) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = padded, width
        self.org_vocab_size = vocabulary
        self.num_embeddings_per_partition = padded // tp_size
        self.tp_rank = tp_rank


def create(config: GGUFConfig, layer: nn.Module, prefix: str, dtype: torch.dtype = torch.float32, **extra: Any) -> Any:
    """Do what an engine does when it builds the layer, and return the method."""
    method = config.get_quant_method(layer, prefix)
    assert method is not None
    if isinstance(layer, nn.Linear):
        sizes = (layer.in_features, [layer.out_features], layer.in_features, layer.out_features)
    elif isinstance(layer, nn.Embedding):
        sizes = (layer.embedding_dim, [layer.num_embeddings], layer.embedding_dim, layer.num_embeddings)
    elif isinstance(layer, EngineEmbedding):
        here = [layer.num_embeddings_per_partition]
        sizes = (layer.embedding_dim, here, layer.embedding_dim, layer.num_embeddings)
    else:
        assert isinstance(layer, EngineLinear)
        sizes = (layer.columns_here, layer.output_partition_sizes, layer.input_size, layer.output_size)
    method.create_weights(layer, *sizes, dtype, **extra)
    return method
