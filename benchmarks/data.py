# SPDX-License-Identifier: Apache-2.0
"""Checkpoints to measure with: made once from a seed, kept under a folder, each with a twin by ``torch.save``."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

SEED = 20260101
_SMALL_LENGTHS = (64, 256, 1024, 4096)
_LAYERS_PER_SHARD = 2

Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Checkpoint:
    """``files`` are safetensors shards, ``twins`` the same tensors by ``torch.save``, in the same order."""

    files: tuple[str, ...]
    twins: tuple[str, ...]
    nbytes: int

    def beneath(self, folder: Path) -> Checkpoint:
        """The same files where they appear under another folder (a mount)."""
        files = tuple(str(folder / Path(path).name) for path in self.files)
        return Checkpoint(files, tuple(str(folder / Path(path).name) for path in self.twins), self.nbytes)


def model(folder: Path, nbytes: int, shards: int = 8) -> Checkpoint:
    """A decoder's shapes in bf16, two layers a shard, about ``nbytes`` in all (2 GiB: hidden size 2048)."""
    # One layer has 16 hidden^2 elements (attention 4, MLP 12), of 2 bytes each.
    hidden = max(8, math.isqrt(nbytes // shards // (_LAYERS_PER_SHARD * 32)) // 8 * 8)
    return _made(folder / f"model-{nbytes}-{shards}", shards, lambda shard: _layers(shard, hidden))


def small(folder: Path, count: int, shards: int = 4) -> Checkpoint:
    """``count`` vectors of 128 bytes to 8 KiB."""

    def tensors(shard: int) -> Shapes:
        for number in range(shard, count, shards):
            yield f"blocks.{number}.scale", (_SMALL_LENGTHS[number // shards % len(_SMALL_LENGTHS)],)

    return _made(folder / f"small-{count}-{shards}", shards, tensors)


def _layers(shard: int, hidden: int) -> Shapes:
    for layer in range(shard * _LAYERS_PER_SHARD, (shard + 1) * _LAYERS_PER_SHARD):
        prefix = f"model.layers.{layer}"
        for name in ("q", "k", "v", "o"):
            yield f"{prefix}.self_attn.{name}_proj.weight", (hidden, hidden)
        yield f"{prefix}.mlp.gate_proj.weight", (4 * hidden, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (4 * hidden, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, 4 * hidden)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)


def _made(folder: Path, shards: int, shapes: Callable[[int], Shapes]) -> Checkpoint:
    done = folder / "made.json"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        total = sum(_write(folder, shard, shards, shapes(shard)) for shard in range(shards))
        done.write_text(json.dumps({"nbytes": total}))
    names = [_name(shard, shards) for shard in range(shards)]
    return Checkpoint(
        files=tuple(str(folder / f"{name}.safetensors") for name in names),
        twins=tuple(str(folder / f"{name}.pt") for name in names),
        nbytes=json.loads(done.read_text())["nbytes"],
    )


def _name(shard: int, shards: int) -> str:
    return f"model-{shard + 1:05}-of-{shards:05}"


def _write(folder: Path, shard: int, shards: int, shapes: Shapes) -> int:
    random = np.random.default_rng([SEED, shard])
    state = {name: _bf16(random, shape) for name, shape in shapes}
    name = _name(shard, shards)
    save_file(state, folder / f"{name}.safetensors", metadata={"format": "pt"})
    torch.save(state, folder / f"{name}.pt")
    return sum(tensor.nbytes for tensor in state.values())


def _bf16(random: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    bits = random.integers(0, 1 << 16, size=shape, dtype=np.uint16)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
