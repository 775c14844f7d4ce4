# SPDX-License-Identifier: Apache-2.0
"""ComfyUI's ``comfy.utils.load_torch_file``: a file as a state dict, read through weight-readers."""

from __future__ import annotations

import os
from typing import Any

import torch

from weight_readers_loader import Checkpoint, open_checkpoint

Loaded = dict[str, torch.Tensor] | tuple[dict[str, torch.Tensor], dict[str, str] | None]


def load_torch_file(
    ckpt: str | os.PathLike[str],
    safe_load: bool = False,
    device: torch.device | None = None,
    return_metadata: bool = False,
    **options: Any,
) -> Loaded:
    """The state dict of ``ckpt``, on the host unless ``device``, with the file's metadata where ``return_metadata``.

    Whatever the file is, nothing in it is run, so that ``safe_load`` changes nothing. ``options`` are those of
    `open_checkpoint`. Raises ValueError for a GGUF file without ``dequantize=``: ComfyUI's layers take numbers.
    """
    checkpoint = open_checkpoint(ckpt, **options)
    _refuse_packed(checkpoint)
    tensors = checkpoint.state_dict(device=device)
    return (tensors, _metadata(checkpoint)) if return_metadata else tensors


def install() -> None:
    """Let every node of this process load through here: for the ``__init__.py`` of a folder below ``custom_nodes``."""
    import comfy.utils

    comfy.utils.load_torch_file = load_torch_file


def _metadata(checkpoint: Checkpoint) -> dict[str, str] | None:
    """As ComfyUI has it: of safetensors files only, and None where a file has none."""
    if checkpoint.layout.format != "safetensors":
        return None
    return {name: value for of_file in checkpoint.metadata.values() for name, value in of_file.items()} or None


def _refuse_packed(checkpoint: Checkpoint) -> None:
    packed = [name for name, meta in checkpoint.tensors.items() if meta.ggml_type is not None]
    if packed:
        raise ValueError(
            f"{checkpoint.reference}: {len(packed)} tensors are packed in blocks ({packed[0]} is the first), and "
            "ComfyUI's layers take numbers; pass dequantize='bfloat16'"
        )
