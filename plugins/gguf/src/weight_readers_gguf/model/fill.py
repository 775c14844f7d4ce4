# SPDX-License-Identifier: Apache-2.0
"""Weights put into a prepared model, each checked against the plan, and none left over on either side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from weight_readers.devices import known_device, usable_device
from weight_readers.errors import TargetMismatchError
from weight_readers_gguf.dequant import dequantize
from weight_readers_gguf.model.plan import Entry
from weight_readers_gguf.model.prepare import Prepared
from weight_readers_gguf.model.report import How, PlacementReport
from weight_readers_gguf.model.slots import Slot
from weight_readers_gguf.model.wording import some

_FUSED = (torch.float32, torch.bfloat16, torch.float16)
"""What dequantization delivers with its one rounding; other dtypes are converted from float32."""


def fill(
    prepared: Prepared,
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    device: str | torch.device | None = None,
    copy: bool = False,
) -> PlacementReport:
    """Put every ``(checkpoint name, tensor)`` where the plan says, and return the report.

    A tensor of the model that has memory is written in place, converted to its dtype with one rounding. One that
    has none becomes the delivered tensor: on ``device`` (of the weight it replaces, or the CPU, where None), and
    without a copy where dtype and device are already right, so that weights which a reader maps stay mapped;
    ``copy=True`` gives it memory of its own.

    Raises TargetMismatchError for a tensor that is not the one the plan was made from, and for one the plan waits
    for in vain.
    """
    if not isinstance(prepared, Prepared):
        raise TypeError(f"prepared must be what prepare_module returned, not {type(prepared).__name__}")
    check_target(device, copy)
    awaited = {name for name in prepared.entries if prepared.wants(name)}
    for name, tensor in _pairs(weights):
        entry = prepared.entries.get(name)
        if entry is None:
            raise TargetMismatchError(
                f"the reader delivers {name!r}, which the headers the model was prepared from do not have",
                fix="Read the files that were given to prepare_module",
                unexpected=[name],
            )
        if entry.slot is not None:
            _place(entry, entry.slot, tensor.detach(), device, copy)
            awaited.discard(name)
    if awaited:
        absent = [name for name in prepared.entries if name in awaited]
        raise TargetMismatchError(
            f"the reader ended without {len(absent)} tensors that the model waits for: {some(absent)}",
            fix="Read all files that were given to prepare_module, without a key filter of another model",
            missing=absent,
        )
    return prepared.report


def check_target(device: object, copy: object) -> None:
    """Raise TypeError or ValueError where the arguments of that name say nothing."""
    if not isinstance(copy, bool):
        raise TypeError(f"copy must be True or False, not {copy!r}")
    if device is not None and not isinstance(device, str | torch.device):
        raise TypeError(f"device must be a torch device or its name, or None, not {device!r}")
    if device is None:
        return
    if known_device(device, torch).type == "meta":
        raise ValueError("device 'meta' has no memory for weights; prepare_module plans a model without reading any")
    usable_device(device, torch)


def _pairs(weights: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors; TypeError for anything else."""
    wanted = "weights must be pairs of a checkpoint name and a tensor, as a reader yields them"
    if not isinstance(weights, Iterable):
        raise TypeError(f"{wanted}, not {type(weights).__name__}")
    for pair in weights:
        if not isinstance(pair, tuple | list) or not _is_pair(*pair):
            raise TypeError(f"{wanted}, and there is {pair!r:.80} among them")
        name, tensor = pair
        yield name, tensor


def _is_pair(name: object = None, tensor: object = None, *more: object) -> bool:
    return isinstance(name, str) and isinstance(tensor, torch.Tensor) and not more


def _place(entry: Entry, slot: Slot, tensor: torch.Tensor, device: str | torch.device | None, copy: bool) -> None:
    _check_delivery(entry, tensor)
    with torch.no_grad():
        value = _value(entry, slot, tensor)
        if not slot.tensor.is_meta:
            slot.tensor.detach().copy_(value)
            return
        value = value.to(device or slot.home)
        if copy and value.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            value = value.clone()
        slot.redeclare(value)


def _check_delivery(entry: Entry, tensor: torch.Tensor) -> None:
    expected = entry.tensor.stored_dtype, tuple(entry.tensor.stored_shape)
    found = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if expected != found:
        raise TargetMismatchError(
            f"the reader delivers {entry.tensor.name!r} as {found[0]} {list(found[1])},"
            f" and its header says {expected[0]} {list(expected[1])}",
            fix="Read the file that was given to prepare_module, without dequantize or slices",
            shapes=[(entry.tensor.name, str(list(found[1])), str(list(expected[1])))],
        )


def _value(entry: Entry, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    """What the slot will hold: packed bytes, or numbers in its dtype and shape after the rules have been applied."""
    if entry.rows is not None:
        tensor = _changed("rows", entry, entry.rows(tensor), tensor)
    if entry.how is How.PACKED:
        return tensor
    if entry.tensor.is_packed:
        fused = entry.values is None and entry.dtype in _FUSED
        tensor = dequantize(tensor, entry.tensor.type_name, dtype=entry.dtype if fused else torch.float32)
    if entry.values is not None:
        tensor = _changed("values", entry, entry.values(tensor.float()), tensor.float())
    return tensor.reshape(slot.tensor.shape).to(entry.dtype)


def _changed(rule: str, entry: Entry, found: object, before: torch.Tensor) -> torch.Tensor:
    """What a rule of the caller's made of a tensor; TargetMismatchError where it does not fit in its place."""
    if isinstance(found, torch.Tensor) and (found.dtype, found.shape) == (before.dtype, before.shape):
        return found
    given = f"{found.dtype} {list(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
    raise TargetMismatchError(
        f"the rule {rule} for {entry.tensor.name!r} is given {before.dtype} {list(before.shape)} and must give as much,"
        f" not {given:.80}",
        fix="Mend the function",
    )
