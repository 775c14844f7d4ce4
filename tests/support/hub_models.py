# SPDX-License-Identifier: Apache-2.0
"""Models as repositories hold them, and caches of huggingface_hub put together by hand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from unit.gguf.gguf_bytes import gguf_bytes

from support.files import write_sharded

F32 = 0


def sharded(folder: Path, count: int = 2) -> dict[str, bytes]:
    """An index, its shards with a tensor ``t<i>`` each, and a config."""
    write_sharded(folder, count)
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {**files, "config.json": b'{"model_type": "llama"}'}


def gguf_file(value: float, *, part: int = 0, parts: int = 1) -> bytes:
    """One tensor ``w<part>`` of four equal numbers."""
    split = {"split.no": ("UINT16", part), "split.count": ("UINT16", parts), "split.tensors.count": ("INT32", parts)}
    tensors = {f"w{part}": (F32, (4,), np.full(4, value, dtype=np.float32).tobytes())}
    return gguf_bytes(tensors, {"general.architecture": "tiny", **(split if parts > 1 else {})})


def quantized_repository() -> dict[str, bytes]:
    """Files as the usual publishers of GGUF name them; each holds its own number."""
    return {
        "config.json": b"{}",
        "Tiny-Q4_K_M.gguf": gguf_file(1),
        "Tiny-UD-Q4_K_M.gguf": gguf_file(2),
        "tiny.q8_0.gguf": gguf_file(3),
        "BF16/Tiny-BF16-00001-of-00002.gguf": gguf_file(4, part=0, parts=2),
        "BF16/Tiny-BF16-00002-of-00002.gguf": gguf_file(5, part=1, parts=2),
        "mmproj-F16.gguf": gguf_file(6),
    }


def write_cache(cache: Path, repo: str, commit: str, files: Mapping[str, bytes], *, ref: str | None = "main") -> Path:
    """One commit as huggingface_hub keeps it: links to blobs, and a ref. The folder of the snapshot."""
    root = cache / f"models--{repo.replace('/', '--')}"
    for folder in (root / "blobs", root / "refs", root / "snapshots" / commit):
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        blob = root / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        link = root / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    if ref is not None:
        (root / "refs" / ref).write_text(commit)
    return root / "snapshots" / commit
