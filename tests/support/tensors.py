# SPDX-License-Identifier: Apache-2.0
"""Tensors as bytes: made without the code under test, and compared bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import random
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from support.files import entry, write_safetensors, write_tensors

BITS = {
    "BOOL": 8,
    "F4": 4,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Every dtype of safetensors 0.8 that torch can hold, and its size."""

Tensor = tuple[str, list[int], bytes]
"""``(dtype, shape, bytes)``, as `write_tensors` takes it."""


def noise(count: int, seed: object = 0) -> bytes:
    """Bytes that look like nothing: NaNs, denormals and padding bits included."""
    return random.Random(str(seed)).randbytes(count)


def tensor(dtype: str, *shape: int, seed: object = 0) -> Tensor:
    """A tensor of noise; BOOL holds 0 and 1 only, since torch computes with no others."""
    data = noise(math.prod(shape) * BITS[dtype] // 8, seed)
    return dtype, list(shape), bytes(byte & 1 for byte in data) if dtype == "BOOL" else data


def bits(values: torch.Tensor) -> bytes:
    """The elements in order, as bytes; of any strides and any dtype."""
    flat = values.view(torch.uint8) if values.dtype.itemsize == 1 else values.contiguous().reshape(-1)
    return flat.contiguous().view(torch.uint8).numpy().tobytes()


def contents(pairs: Iterable[tuple[str, torch.Tensor]]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """Everything that tells two checkpoints apart, in the order of the reader."""
    return {name: (values.dtype, tuple(values.shape), bits(values)) for name, values in pairs}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_shards(folder: Path, count: int, *, tensors: int = 2) -> list[Path]:
    """Shards ``model-1.safetensors`` … without leading zeros, with F32 tensors ``s<shard>.t<number>`` of [3, 5]."""
    return [
        write_tensors(
            folder / f"model-{shard}.safetensors",
            {f"s{shard}.t{number}": tensor("F32", 3, 5, seed=(shard, number)) for number in range(tensors)},
        )
        for shard in range(1, count + 1)
    ]


def read_all(name: str, modes: Iterable[Mapping[str, Any]], paths: list[str]) -> list[dict[str, bytes]]:
    """What a reader reads in each of its modes; at the top of a module, so that a spawned process finds it."""
    import weight_readers

    select = partial(weight_readers.select_weight_reader, requested=name, format="safetensors", strict=True)
    return [{key: bits(t) for key, t in select(options=options).iter_weights(paths)} for options in modes]


def write_sparse(path: Path, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Write U8 tensors of zeros that take no room on disk; returns where each begins and ends in the file.

    The data section begins at a page, so that tensors of whole pages share none.
    """
    header, end = {}, 0
    for name, size in sizes.items():
        header[name] = entry("U8", [size], end, end + size)
        end += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(8 + len(encoded)) % mmap.PAGESIZE)
    start = 8 + len(encoded)
    write_safetensors(path, encoded)
    os.truncate(path, start + end)
    return {name: (start + each["data_offsets"][0], start + each["data_offsets"][1]) for name, each in header.items()}
