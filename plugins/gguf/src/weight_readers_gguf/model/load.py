# SPDX-License-Identifier: Apache-2.0
"""A GGUF checkpoint into a model in one call."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from weight_readers.reader import WeightReader
from weight_readers_gguf.methods.workspace import DEFAULT_BYTES
from weight_readers_gguf.model.fill import fill
from weight_readers_gguf.model.prepare import Source, prepare_module
from weight_readers_gguf.model.report import PlacementReport
from weight_readers_gguf.model.slots import distinct, slots_of
from weight_readers_gguf.model.snapshot import Snapshot


def load_packed(
    model: nn.Module,
    checkpoint: Source,
    *,
    reader: WeightReader | None = None,
    device: str | torch.device | None = None,
    copy: bool = False,
    workspace_bytes: int = DEFAULT_BYTES,
    **rules: Any,
) -> PlacementReport:
    """Prepare ``model`` for the checkpoint, read its weights into it, and report what became of each.

    ``reader`` is the reader ``gguf`` with its defaults where None; ``device`` and ``copy`` are those of `fill`,
    ``workspace_bytes`` and ``rules`` those of `prepare_module`. Tensors that the model has no place for are not
    read. Raises what those two and the reader raise; a model on the meta device is then as it was.
    """
    slots = distinct(slots_of(model))
    with ExitStack() as guard:
        if all(slot.tensor.is_meta for slot in slots):
            guard.enter_context(Snapshot(slots))
        prepared = prepare_module(model, checkpoint, workspace_bytes=workspace_bytes, **rules)
        weights = (reader or _reader()).iter_weights(prepared.files, key_filter=prepared.wants)
        return fill(prepared, weights, device=device, copy=copy)


def _reader() -> WeightReader:
    from weight_readers_gguf.reader import GGUFReader

    return GGUFReader()
