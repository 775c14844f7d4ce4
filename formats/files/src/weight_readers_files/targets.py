# SPDX-License-Identifier: Apache-2.0
"""The caller's tensors as what is read into: what is refused before the first byte, and how they are written to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch.autograd.graph import increment_version

from weight_readers import CheckpointMeta, TargetMismatchError
from weight_readers_files import FilePlan
from weight_readers_files.apart import UNTOUCHED, targets_apart
from weight_readers_files.writable import require_writable

_plain = torch.Tensor.__torch_dispatch__
_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})


def checked_plans(
    targets: Mapping[str, torch.Tensor], meta: CheckpointMeta, plan: Callable[[], Sequence[FilePlan]]
) -> tuple[Sequence[FilePlan], dict[str, int]]:
    """What ``plan`` says, and the addresses of the targets that hold the very bytes of a file: see `targets_known`.

    Raises TypeError or TargetMismatchError for targets that cannot be filled, and what ``plan`` raises.
    """
    if not isinstance(targets, Mapping):
        raise TypeError(f"targets must be a mapping of tensor names to tensors, not {type(targets).__name__}")
    plain = targets_known(targets, meta)
    plans = plan()
    targets_fit(targets, plans)
    targets_apart(targets, plain)
    require_writable(targets)
    return plans, plain


def targets_known(targets: Mapping[str, torch.Tensor], meta: CheckpointMeta) -> dict[str, int]:
    """Raise TypeError for what is no tensor with memory, TargetMismatchError for names that are not in the files.

    Returns the addresses of the targets that hold in host memory the very bytes of a file, one after the other.
    """
    plain: dict[str, int] = {}
    for name, target in targets.items():
        # There may be tens of thousands: a question to each of them is a millisecond.
        if type(target) in _ORDINARY and _holds_plain_bytes(target) and (address := target.data_ptr()):
            plain[name] = address
        elif fault := _memory_fault(target):
            raise TypeError(f"target {name!r} {fault}")
        elif _holds_plain_bytes(target):
            plain[name] = target.data_ptr()
    if absent := [name for name in targets if name not in meta]:
        raise TargetMismatchError(
            f"{len(absent)} targets are not in the files: {_some(absent)}", fix=UNTOUCHED, unexpected=absent
        )
    return plain


def _holds_plain_bytes(target: torch.Tensor) -> bool:
    # A lazily conjugated or negated view holds other bytes than its values have.
    return (
        target.is_cpu
        and not target.is_nested
        and target.layout is torch.strided
        and target.is_contiguous()
        and not target.is_neg()
        and not target.is_conj()
    )


def _memory_fault(target: object) -> str | None:
    """Why bytes cannot be written into the tensor's memory."""
    if not isinstance(target, torch.Tensor):
        return f"is {type(target).__name__}, not a tensor"
    if target.is_nested:
        return "is a nested tensor, not a plain one"
    if target.is_meta:
        return "is a meta tensor: there is no memory to read into"
    if target.layout != torch.strided or type(target).__torch_dispatch__ is not _plain:
        return f"is a {type(target).__name__} of layout {target.layout}, not a plain tensor with memory of its own"
    if target.numel() and not target.data_ptr():
        return "has no memory: its storage was released"
    if not target.is_contiguous() and _may_overlap(target):
        return f"has elements that share memory (shape {list(target.shape)}, strides {list(target.stride())})"
    return None


def _may_overlap(target: torch.Tensor) -> bool:
    """Whether a dimension is laid out closer than the ones inside it are long, as expanded ones are."""
    reach = 1
    for stride, size in sorted(zip(target.stride(), target.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


def targets_fit(targets: Mapping[str, torch.Tensor], plans: Sequence[FilePlan]) -> None:
    """Raise TargetMismatchError naming every target that does not have the dtype and shape of what would be read."""
    shapes: list[tuple[str, str, str]] = []
    dtypes: list[tuple[str, str, str]] = []
    for wanted in chain.from_iterable(plan.wanted for plan in plans):
        target = targets[wanted.name]
        if target.dtype is wanted.dtype and target.shape == wanted.shape:
            continue
        if target.shape != wanted.shape:
            shapes.append((wanted.name, str(list(wanted.shape)), str(list(target.shape))))
        if target.dtype != wanted.dtype:
            dtypes.append((wanted.name, _name(wanted.dtype), _name(target.dtype)))
    if shapes or dtypes:
        different = [f"{name} (file {found}, target {wanted})" for name, found, wanted in [*shapes, *dtypes]]
        raise TargetMismatchError(
            f"{len(different)} targets do not fit what would be read into them: {_some(different)}",
            fix=f"{UNTOUCHED}; give targets of the file's dtype and of the shape of the slice",
            shapes=shapes,
            dtypes=dtypes,
        )


def blocks(target: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """``target`` in parts of at most ``limit`` bytes (or one element), in the order of its elements."""
    if target.nbytes <= limit or target.numel() <= 1:
        yield target
        return
    row = target.nbytes // target.shape[0]
    if row > limit:
        for part in target:
            yield from blocks(part, limit)
        return
    for begin in range(0, target.shape[0], limit // row):
        yield target[begin : begin + limit // row]


def as_bytes(target: torch.Tensor) -> torch.Tensor:
    """``uint8 [nbytes]``: the memory of a contiguous tensor.

    One of a single element is contiguous whatever its strides are, and not for a view of another dtype.
    """
    return target.as_strided((target.numel(),), (1,)).view(torch.uint8)


def tell_autograd(written: Iterable[torch.Tensor]) -> None:
    """Count a change of each: a graph that holds the old values must not go on with the new ones."""
    for target in written:
        if not target.is_inference():
            increment_version(target)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(names: Sequence[str], limit: int = 10) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + rest
