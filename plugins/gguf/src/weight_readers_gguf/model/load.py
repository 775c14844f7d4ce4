# SPDX-License-Identifier: Apache-2.0
"""A GGUF checkpoint into a model in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weight_readers.capabilities import Writes
from weight_readers.reader import WeightReader
from weight_readers_gguf.methods.workspace import DEFAULT_BYTES
from weight_readers_gguf.model.fill import check_target, fill
from weight_readers_gguf.model.prepare import Source, check_model, prepare_module
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
    read, and those of a reader that maps them read-only are copied. Raises what those two and the reader raise, and
    FileChangedError where a file is not the one that the headers were read of; what the model has on the meta device is
    then as it was, and only what had memory may have been let go or written to.
    """
    check_model(model)
    check_target(device, copy)
    reader = _reader() if reader is None else reader
    if not callable(getattr(reader, "iter_weights", None)):
        raise TypeError(f"reader must be a reader of weights (GGUFReader, say), or None, not {reader!r}")
    # What has memory is not kept for a failure: the model would need that of both.
    with Snapshot(slot for slot in distinct(slots_of(model)) if slot.tensor.is_meta):
        prepared = prepare_module(model, checkpoint, workspace_bytes=workspace_bytes, **rules)
        weights = reader.iter_weights(prepared.files, key_filter=prepared.wants)
        report = fill(prepared, weights, device=device, copy=copy or _kills_writers(reader))
        # The reader's own check is of the headers that it read: bytes of two types can have one size.
        prepared.checkpoint.require_unchanged()
        return report


def _kills_writers(reader: WeightReader) -> bool:
    """Whether a write to what it delivers ends the process: a model is written to (a cast, `load_state_dict`)."""
    info = getattr(reader, "info", None)
    return info is not None and info.writes is Writes.READ_ONLY


def _reader() -> WeightReader:
    from weight_readers_gguf.reader import GGUFReader

    return GGUFReader()
