# SPDX-License-Identifier: Apache-2.0
"""Which tensor of a checkpoint goes where in a model, and as what: decided from names and headers, nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from weight_readers_gguf.methods.compute import ACTIVATIONS
from weight_readers_gguf.model.packed import packed_class
from weight_readers_gguf.model.report import How, Placement
from weight_readers_gguf.model.rules import Change, Rules, matches, rule_for
from weight_readers_gguf.model.slots import Slot, distinct
from weight_readers_gguf.tensors import Delivery, GGUFTensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """One tensor of the checkpoint and the slot it goes to (None: nowhere, ``unexpected`` unless a rule says so).

    ``dtype`` is the one the slot will have, ``rows``, ``values`` and ``file_shape`` are what the rules say of it.
    """

    tensor: GGUFTensor
    how: How
    slot: Slot | None = None
    target: str | None = None
    reason: str | None = None
    unexpected: bool = False
    dtype: torch.dtype = torch.float32
    rows: Change | None = None
    values: Change | None = None
    file_shape: tuple[int, ...] | None = None

    @property
    def placement(self) -> Placement:
        held = None if self.slot is None else self.slot.tensor
        return Placement(
            source=self.tensor.name,
            names=() if self.slot is None else tuple(self.slot.names),
            how=self.how,
            type=self.tensor.type_name,
            dtype=None if held is None else str(held.dtype).removeprefix("torch."),
            file_nbytes=self.tensor.nbytes or 0,
            nbytes=0 if held is None else held.nbytes,
            reason=self.reason,
        )


def entries_of(tensors: Mapping[str, GGUFTensor], slots: Mapping[str, Slot], rules: Rules) -> list[Entry]:
    """One entry for each tensor, in the checkpoint's order."""
    islands = set(islands_of(slots, rules))
    return [_entry(tensor, slots, rules, islands) for tensor in tensors.values()]


def islands_of(slots: Mapping[str, Slot], rules: Rules) -> list[Slot]:
    """The slots of floating-point numbers that rules say are float32."""
    return [
        slot
        for slot in distinct(slots)
        if not slot.is_lazy and slot.tensor.is_floating_point() and matches(rules.islands, slot.names)
    ]


def _entry(tensor: GGUFTensor, slots: Mapping[str, Slot], rules: Rules, islands: set[Slot]) -> Entry:
    if pattern := matches(rules.ignore, [tensor.name]):
        return Entry(tensor=tensor, how=How.IGNORED, reason=f"left out by ignore {pattern!r}")
    target = rules.target(tensor.name)
    if target is None:
        return Entry(tensor=tensor, how=How.IGNORED, reason="left out by rename")
    slot = slots.get(target)
    if slot is None:
        stray = f"the model has no parameter {target!r}"
        return Entry(tensor=tensor, how=How.IGNORED, target=target, reason=stray, unexpected=True)
    island = slot in islands
    how, reason = _how(tensor, slot, rules, island)
    return Entry(
        tensor=tensor,
        how=how,
        slot=slot,
        target=target,
        reason=reason,
        dtype=torch.float32 if island else slot.tensor.dtype,
        rows=rule_for(rules.rows, slot.names),
        values=rule_for(rules.values, slot.names),
        file_shape=_shape(rule_for(rules.reshape, slot.names)),
    )


def _shape(shape: object) -> tuple[int, ...] | None:
    return None if shape is None else tuple(shape)  # type: ignore[arg-type]


def _how(tensor: GGUFTensor, slot: Slot, rules: Rules, island: bool) -> tuple[How, str | None]:
    if tensor.delivery is Delivery.PLAIN:
        return How.PLAIN, None
    if not tensor.is_packed:
        return How.DEQUANTIZED, tensor.reason
    reason = _ruled_out(slot, rules, island) or _not_packable(slot)
    return (How.PACKED, None) if reason is None else (How.DEQUANTIZED, reason)


def _ruled_out(slot: Slot, rules: Rules, island: bool) -> str | None:
    """The rule that has a tensor dequantized although the file has it packed."""
    if island:
        return "a float32 island"
    if pattern := matches(rules.dequantize, slot.names):
        return f"asked for by dequantize {pattern!r}"
    for rule in ("values", "reshape"):
        if pattern := matches(getattr(rules, rule), slot.names):
            return f"changed by {rule} {pattern!r}"
    return None


def _not_packable(slot: Slot) -> str | None:
    """Why the model cannot hold the tensor packed: each layer that has it must be one that computes with it."""
    if slot.tensor.dtype not in ACTIVATIONS:
        return f"declared {slot.tensor.dtype}, and packed layers compute in float32, float16 or bfloat16"
    for holder in slot.holders:
        kind = type(holder.module)
        if holder.attribute != "weight" or not issubclass(kind, nn.Linear | nn.Embedding):
            return f"{holder.attribute} of {kind.__name__}, which is neither nn.Linear nor nn.Embedding"
        if isinstance(holder.module, nn.Embedding) and holder.module.max_norm is not None:
            return f"{kind.__name__} with max_norm, which rewrites its rows"
        try:
            packed_class(kind)
        except TypeError as error:
            return f"{kind.__name__} cannot be subclassed: {error}"
    return None
