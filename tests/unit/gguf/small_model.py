# SPDX-License-Identifier: Apache-2.0
"""A small model, and GGUF files for it with random bytes; what they stand for is said by ggml's C code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from unit.gguf.gguf_bytes import write_gguf
from unit.gguf.oracles import ggml
from unit.gguf.random_blocks import random_blocks

from weight_readers_gguf.types import BY_NAME

WIDTH, VOCABULARY = 64, 8
SHAPES = {
    "embed.weight": (VOCABULARY, WIDTH),
    "norm.weight": (WIDTH,),
    "up.weight": (96, WIDTH),
    "up.bias": (96,),
    "down.weight": (WIDTH, 96),
    "head.weight": (VOCABULARY, WIDTH),
}
TYPES = {
    "embed.weight": "Q8_0",
    "norm.weight": "F32",
    "up.weight": "Q4_0",
    "up.bias": "F32",
    "down.weight": "Q5_1",
    "head.weight": "Q8_0",
}
TIED = {name: type_name for name, type_name in TYPES.items() if name != "head.weight"}


class Small(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 96)
        self.down = nn.Linear(96, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(self.up(self.norm(self.embed(ids))).relu()))  # type: ignore[no-any-return]


def on_meta(dtype: torch.dtype = torch.float32, *, tied: bool = False) -> Small:
    with torch.device("meta"):
        return Small(tied=tied).to(dtype)


def payload(name: str, type_name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes for a tensor: of blocks ``[rows, row_bytes]``, of floats the numbers themselves. The same for one name."""
    seed = sum(name.encode())
    kind = BY_NAME[type_name]
    if kind.dtype is not None:
        numbers = np.random.default_rng(seed).standard_normal(shape)
        return np.ascontiguousarray(numbers, dtype=kind.dtype)
    blocks = random_blocks(type_name, int(np.prod(shape)) // kind.block, seed)
    # Random scales are not finite, or very large, now and then: here the numbers are compared after arithmetic.
    blocks[:, 1] = 0x20 | blocks[:, 1] & 0x03
    if type_name == "Q5_1":
        blocks[:, 3] = 0x20 | blocks[:, 3] & 0x03
    return blocks.reshape(*shape[:-1], -1)


def write(path: Path, types: Mapping[str, str] = TYPES, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Path:
    """A file of the named tensors; those of `SHAPES` have these shapes unless others are given."""
    every = {**SHAPES, **shapes}
    return write_gguf(
        path,
        {n: (BY_NAME[t].id, every[n], payload(n, t, every[n]).tobytes()) for n, t in types.items()},
        {"general.architecture": "small"},
    )


def delivered(
    types: Mapping[str, str] = TYPES, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> Iterator[tuple[str, torch.Tensor]]:
    """What a reader yields for that file: packed bytes of two dimensions as they are, other blocks as float32."""
    every = {**SHAPES, **shapes}
    for name, type_name in types.items():
        raw = payload(name, type_name, every[name])
        plain = BY_NAME[type_name].dtype is not None
        yield name, torch.from_numpy(raw if plain or raw.ndim == 2 else ggml(type_name, raw))


def numbers(name: str, type_name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """What the tensor stands for, as float32 by ggml."""
    raw = payload(name, type_name, shape or SHAPES[name])
    return torch.from_numpy(raw if BY_NAME[type_name].dtype else ggml(type_name, raw))


def state(model: nn.Module) -> dict[str, Any]:
    """Which modules, classes and tensors the model is made of."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    modules = {name: (module, type(module), set(vars(module))) for name, module in model.named_modules()}
    return {"modules": modules, "tensors": {name: id(tensor) for name, tensor in tensors.items()}}
