# SPDX-License-Identifier: Apache-2.0
"""The audit of a plan, both ways: every packed tensor has a place, every parameter has a tensor, and they fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from weight_readers.errors import CheckpointError, CheckpointProblems, TargetMismatchError
from weight_readers.spelling import closest
from weight_readers_gguf.model.plan import Entry
from weight_readers_gguf.model.report import How
from weight_readers_gguf.model.rules import Rules, matches
from weight_readers_gguf.model.slots import Slot, distinct
from weight_readers_gguf.model.wording import some
from weight_readers_gguf.tensors import Delivery

_FIX = "The model was not changed; map names with rename, leave tensors out with ignore"


@dataclass
class _Findings:
    sentences: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[tuple[str, str, str]] = field(default_factory=list)
    dtypes: list[tuple[str, str, str]] = field(default_factory=list)

    def say(self, what: str, items: Sequence[str]) -> None:
        if items:
            self.sentences.append(f"{what}: {some(items)}")


def audit(entries: Sequence[Entry], slots: Mapping[str, Slot], rules: Rules, path: str) -> None:
    """Raise for everything that keeps the checkpoint from being loaded into the model; nothing is changed.

    Raises the refusals of tensors that cannot be delivered (several as CheckpointProblems), else one
    TargetMismatchError that names every other problem.
    """
    CheckpointProblems.raise_any(_refused(entries), path=path)
    found = _Findings()
    found.say("rules that match no parameter", list(rules.unused(slots)))
    found.say("parameters without a shape yet", [s.name for s in distinct(slots) if s.is_lazy])
    _names(found, entries, slots, rules)
    _fit(found, [entry for entry in entries if entry.slot is not None and not entry.slot.is_lazy], rules)
    if found.sentences:
        raise TargetMismatchError(
            f"{path} does not fit the model: " + "; ".join(found.sentences),
            fix=_FIX,
            missing=found.missing,
            unexpected=found.unexpected,
            shapes=found.shapes,
            dtypes=found.dtypes,
        )


def missing_names(entries: Iterable[Entry], slots: Mapping[str, Slot]) -> list[str]:
    """Parameters that no tensor of the checkpoint goes to, each by its first name."""
    filled = {entry.slot for entry in entries}
    return [slot.name for slot in distinct(slots) if slot not in filled]


def _refused(entries: Sequence[Entry]) -> Iterator[CheckpointError]:
    for entry in entries:
        if entry.slot is not None and (refusal := entry.tensor.refusal()):
            yield refusal


def _names(found: _Findings, entries: Sequence[Entry], slots: Mapping[str, Slot], rules: Rules) -> None:
    strays = [entry for entry in entries if entry.unexpected]
    found.unexpected += [entry.tensor.name for entry in strays]
    missing = missing_names(entries, slots)
    open_ = [name for name in missing if not matches(rules.missing_ok, slots[name].names)]
    found.missing += open_
    quantized = [entry for entry in strays if entry.tensor.delivery is not Delivery.PLAIN]
    found.say("quantized tensors that the model has no place for", [_stray(entry, missing) for entry in quantized])
    found.say("parameters that no tensor goes to", open_)
    by_slot: dict[Slot, list[str]] = {}
    for entry in entries:
        if entry.slot is not None:
            by_slot.setdefault(entry.slot, []).append(entry.tensor.name)
    twice = [f"{' and '.join(names)} ({slot.name})" for slot, names in by_slot.items() if len(names) > 1]
    found.say("tensors that go to one parameter", twice)


def _stray(entry: Entry, missing: Sequence[str]) -> str:
    name, target = entry.tensor.name, entry.target or ""
    if close := closest(target, missing):
        return f"{name} (as {target}; is {close} meant?)"
    return name if name == target else f"{name} (as {target})"


def _fit(found: _Findings, entries: Sequence[Entry], rules: Rules) -> None:
    for entry in entries:
        assert entry.slot is not None  # noqa: S101 - the caller has left the others out
        tensor, wanted = entry.tensor, entry.slot.tensor
        if tuple(tensor.shape) != (entry.file_shape or tuple(wanted.shape)) or _other_size(entry):
            expected = entry.file_shape or tuple(wanted.shape)
            found.shapes.append((tensor.name, str(list(tensor.shape)), str(list(expected))))
        if not _converts(entry):
            found.dtypes.append((tensor.name, tensor.type_name, str(entry.dtype).removeprefix("torch.")))
    pairs = [*found.shapes, *found.dtypes]
    found.say("tensors that do not fit", [f"{name} (file {has}, model {wants})" for name, has, wants in pairs])
    if rules.strict:
        dense = [f"{each.tensor.name} ({each.reason})" for each in entries if each.how is How.DEQUANTIZED]
        found.say("quantized tensors that cannot stay packed (strict)", dense)


def _other_size(entry: Entry) -> bool:
    assert entry.slot is not None  # noqa: S101 - as in `_fit`
    return entry.file_shape is not None and torch.Size(entry.file_shape).numel() != entry.slot.tensor.numel()


def _converts(entry: Entry) -> bool:
    """Whether the numbers of the file can be those of the model: floats of any width, others with nothing lost."""
    if entry.tensor.delivery is not Delivery.PLAIN:
        return entry.dtype.is_floating_point
    source: torch.dtype = getattr(torch, entry.tensor.stored_dtype)
    if source.is_floating_point and entry.dtype.is_floating_point:
        return True
    return torch.promote_types(source, entry.dtype) == entry.dtype and not entry.dtype.is_floating_point
