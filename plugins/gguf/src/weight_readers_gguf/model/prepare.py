# SPDX-License-Identifier: Apache-2.0
"""A model made ready for a checkpoint: linear and embedding layers packed where the file is packed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from weight_readers.errors import TargetMismatchError
from weight_readers_gguf.checkpoint import GGUFCheckpoint, read_checkpoint
from weight_readers_gguf.methods.config import GGUFConfig
from weight_readers_gguf.methods.workspace import DEFAULT_BYTES, Workspace
from weight_readers_gguf.model.audit import audit, missing_names
from weight_readers_gguf.model.packed import PackedLayer, pack
from weight_readers_gguf.model.plan import Entry, entries_of, islands_of
from weight_readers_gguf.model.report import How, PlacementReport
from weight_readers_gguf.model.rules import Rules
from weight_readers_gguf.model.slots import Holder, Slot, slots_of, without_memory
from weight_readers_gguf.model.snapshot import Snapshot
from weight_readers_gguf.splits import split_siblings
from weight_readers_gguf.types import BY_NAME

Source = GGUFCheckpoint | GGUFConfig | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A checkpoint whose headers were read, a config of one with its names, or the files: one of a set stands for all."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model and where each tensor of the checkpoint goes in it; `fill` of this package puts them there."""

    model: nn.Module
    checkpoint: GGUFCheckpoint
    entries: dict[str, Entry]
    missing: tuple[str, ...]

    def wants(self, name: str) -> bool:
        """Whether the model has a place for the tensor of that checkpoint name: a key filter for readers."""
        entry = self.entries.get(name)
        return entry is not None and entry.slot is not None

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(header.path for header in self.checkpoint.headers)

    @property
    def report(self) -> PlacementReport:
        """What becomes of each tensor; sizes and dtypes are those of the model as it is now."""
        placements = tuple(entry.placement for entry in self.entries.values())
        unset = without_memory(self.model)
        return PlacementReport(files=self.files, placements=placements, missing=self.missing, unset=unset)


def prepare_module(
    model: nn.Module, checkpoint: Source, *, workspace_bytes: int = DEFAULT_BYTES, **rules: Any
) -> Prepared:
    """Turn the layers of ``model`` that ``checkpoint`` has packed into packed ones, in place, and plan the rest.

    Only headers are read. ``model`` may be on the meta device, where it takes no memory, or hold weights, of which
    those to be packed are let go. Layers keep their identity, hooks and attributes. ``rules`` are those of `Rules`:
    ``rename``, ``islands``, ``dequantize``, ``rows``, ``values``, ``reshape``, ``ignore``, ``missing_ok`` and
    ``strict``. The packed layers share a workspace of at most ``workspace_bytes`` of dense weight at a time.

    Raises TargetMismatchError naming everything that does not fit (a packed tensor with no place, a parameter with
    no tensor, shapes, dtypes, rules that match nothing), and CheckpointError for what is wrong with the file. The
    model is then as it was.
    """
    check_model(model)
    made, workspace = Rules(**_with_names(checkpoint, rules)), Workspace(workspace_bytes)
    read = checkpoint_of(checkpoint)
    slots = slots_of(model)
    entries = entries_of(read.tensors, slots, made)
    audit(entries, slots, made, read.headers[0].path)
    missing = tuple(missing_names(entries, slots))
    with Snapshot(slots.values()):
        _apply(entries, islands_of(slots, made), workspace)
    return Prepared(model, read, {entry.tensor.name: entry for entry in entries}, missing)


def check_model(model: object) -> None:
    """Raise TypeError for what is no module, TargetMismatchError for one that was prepared before."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, not {model!r}")
    if packed := [name for name, module in model.named_modules() if isinstance(module, PackedLayer)]:
        raise TargetMismatchError(
            f"the model has {len(packed)} packed layers already ({packed[0]!r} first): it was prepared before",
            fix="Fill it (fill of what prepare_module returned, or load_into), or build the model anew",
        )


def checkpoint_of(source: Source) -> GGUFCheckpoint:
    """The checkpoint itself, or what the headers of its files say."""
    if not isinstance(source, GGUFCheckpoint | GGUFConfig | str | os.PathLike | Sequence):
        raise TypeError(
            f"checkpoint must be a path, a sequence of paths, a GGUFCheckpoint or a GGUFConfig, not"
            f" {type(source).__name__}. Of what open_checkpoint returned, pass .layout.paths"
        )
    if isinstance(source, GGUFCheckpoint):
        return source
    if isinstance(source, GGUFConfig):
        return source.checkpoint
    return read_checkpoint(split_siblings(source) if isinstance(source, str | os.PathLike) else source)


def _with_names(source: Source, rules: dict[str, Any]) -> dict[str, Any]:
    """The rules, with the names of a config where the source is one."""
    if not isinstance(source, GGUFConfig):
        return rules
    if rules.get("rename") is not None:
        raise TypeError("rename is that of the GGUFConfig: give it there")
    names = {tensor.name: name for name, tensor in source.tensors.items()}
    return {**rules, "rename": names.get}


def _apply(entries: Iterable[Entry], islands: Iterable[Slot], workspace: Workspace) -> None:
    for entry in entries:
        if entry.how is How.PACKED:
            _pack(entry, workspace)
    for slot in islands:
        if slot.tensor.dtype is not torch.float32:
            slot.redeclare(slot.tensor.detach().to(torch.float32))


def _pack(entry: Entry, workspace: Workspace) -> None:
    """Every layer that holds the slot's weight holds the same packed one instead, without memory until it is filled."""
    slot, tensor = entry.slot, entry.tensor
    assert slot is not None  # noqa: S101 - only what has a place is packed
    empty = torch.empty(tensor.stored_shape, dtype=torch.uint8, device="meta")
    qweight = nn.Parameter(empty, requires_grad=False)
    for holder in slot.holders:
        pack(holder.module, slot.name.removesuffix(".weight"), qweight, BY_NAME[tensor.type_name], workspace)
    if not slot.tensor.is_meta:
        slot.home = slot.tensor.device
    slot.tensor = qweight
    slot.holders = [Holder(holder.module, "qweight") for holder in slot.holders]
    slot.names = [name.removesuffix("weight") + "qweight" for name in slot.names]
