# SPDX-License-Identifier: Apache-2.0
"""Checkpoints written byte by byte, so that no test input comes from the code under test."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def entry(dtype: Any, shape: Any, begin: int, end: int) -> dict[str, Any]:
    """One tensor of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_safetensors(
    path: Path, header: dict[str, Any] | bytes, body: bytes = b"", *, length: int | None = None, pad: bool = True
) -> Path:
    """Write a safetensors file, valid or broken: bytes as header go out as they are, ``length`` overrides the field."""
    encoded = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    if pad and isinstance(header, dict):
        encoded += b" " * (-len(encoded) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(encoded) if length is None else length) + encoded + body)
    return path


def write_tensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], **metadata: str) -> Path:
    """Write ``name -> (dtype, shape, bytes)`` as a valid file, in the order given."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = entry(dtype, shape, len(body), len(body) + len(data))
        body += data
    return write_safetensors(path, header, body)


def write_index(folder: Path, weight_map: Any, name: str = "model.safetensors.index.json", **metadata: Any) -> Path:
    """Write an index file; ``weight_map`` may be anything."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def write_sharded(folder: Path, count: int = 2, *, index: bool = True) -> list[Path]:
    """``count`` shards ``model-0000i-of-0000n`` with one F32 [2] tensor ``t<i>`` = [i, i + 0.5] each."""
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    shards = [
        write_tensors(folder / name, {f"t{i}": ("F32", [2], floats(i, i + 0.5))}, format="pt")
        for i, name in enumerate(names, 1)
    ]
    if index:
        write_index(folder, {f"t{i}": name for i, name in enumerate(names, 1)}, total_size=8 * count)
    return shards
