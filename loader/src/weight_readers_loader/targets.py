# SPDX-License-Identifier: Apache-2.0
"""What weights are loaded into: the named tensors of a module or a mapping, and which names share one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from weight_readers.slices import Bounds
from weight_readers_loader.distributed.sharded import sharded
from weight_readers_loader.sharing import may_share_elements, span_of


class Part(Protocol):
    """What a target holds of a tensor: ``bounds`` of one of that ``shape``. ``whole`` is what the model has of it."""

    @property
    def whole(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def bounds(self) -> Bounds: ...

    def renewed(self, part: torch.Tensor) -> torch.Tensor:
        """What takes the place of the target on the meta device, over ``part``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """One name of the target, its tensor, and where a module keeps it."""

    name: str
    tensor: torch.Tensor
    module: nn.Module | None = None
    attribute: str = ""
    part: Part | None = None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, module: nn.Module | None = None, attribute: str = "") -> Target:
        """Of a DTensor, ``tensor`` is the part that this rank holds."""
        part = sharded(name, tensor)
        held = tensor if part is None else part.local
        return cls(name=name, tensor=held, module=module, attribute=attribute, part=part)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the checkpoint should have: that of the whole."""
        return tuple(self.tensor.shape if self.part is None else self.part.shape)

    @property
    def is_meta(self) -> bool:
        return self.tensor.is_meta

    @property
    def identity(self) -> Any:
        """Equal for names that share one tensor (tied weights)."""
        tensor = self.tensor
        if tensor.is_meta or tensor.numel() == 0:
            # Of a DTensor the whole: what this rank holds of it is another object each time.
            return id(tensor if self.part is None else self.part.whole)
        return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype

    def write(self, source: torch.Tensor) -> None:
        """Copy into the existing memory, converting the dtype where it differs."""
        target = self.tensor.detach()
        if target.dtype == source.dtype == torch.bool:
            # A copy of booleans makes 1 of every other byte; what is in the file is kept as it is.
            target, source = target.view(torch.uint8), source.view(torch.uint8)
        with torch.no_grad():
            target.copy_(source)

    def materialised(self, source: torch.Tensor) -> torch.Tensor:
        """``source`` as what this target is: a parameter with the attributes of the old one, or a plain buffer."""
        old = self.tensor if self.part is None else self.part.whole
        if self.part is not None:
            source = self.part.renewed(source)
        if not isinstance(old, nn.Parameter):
            return source
        new = nn.Parameter(source, requires_grad=old.requires_grad)
        # What engines hang on parameters (weight loaders, shard dims), and the subclasses they make of them.
        new.__dict__.update({k: v for k, v in old.__dict__.items() if self.part is None or k not in new.__dict__})
        new.__class__ = old.__class__
        return new

    def replace(self, new: torch.Tensor) -> None:
        """Put ``new`` in the place of a tensor without memory."""
        assert self.module is not None  # noqa: S101 - `targets_of` refuses a mapping with meta tensors
        held = self.module._parameters if isinstance(new, nn.Parameter) else self.module._buffers
        held[self.attribute] = new  # type: ignore[assignment]


def targets_of(target: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, Target]:
    """Every parameter and persistent buffer of a module under all its names, or every entry of a mapping."""
    if isinstance(target, nn.Module):
        found = {item.name: item for item in _of_module(target, persistent=True)}
        _refuse_unwritable(found)
        return found
    if not isinstance(target, Mapping):
        raise TypeError(
            f"weights are loaded into a torch.nn.Module or a mapping of tensors, not {type(target).__name__}"
        )
    for name, tensor in target.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"target {name!r} is {type(tensor).__name__}, not a tensor")
        if tensor.is_meta:
            raise TypeError(f"target {name!r} is a meta tensor in a mapping: there is no memory to write to")
    entries = {name: Target.of(name, tensor) for name, tensor in target.items()}
    _refuse_unwritable(entries)
    return entries


def _refuse_unwritable(targets: Mapping[str, Target]) -> None:
    for name, target in targets.items():
        if fault := _unwritable(target.tensor):
            raise TypeError(f"target {name!r} {fault}")


def _unwritable(tensor: torch.Tensor) -> str | None:
    """Why weights cannot be written into the tensor; some of these would end the process instead."""
    if is_lazy(tensor):
        return "has no shape yet: run the lazy module once before weights are loaded"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}: only dense tensors are filled"
    if tensor.is_meta or not tensor.numel():
        return None
    if not tensor.untyped_storage().nbytes():
        return "has no memory: its storage was released (as FSDP does with parameters that it shards)"
    if may_share_elements(tensor):
        return f"is expanded: its elements share memory (strides {list(tensor.stride())}). .clone() it first"
    return None


def meta_buffers(target: nn.Module | Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Non-persistent buffers without memory: no checkpoint holds them, the model has to compute them."""
    if not isinstance(target, nn.Module):
        return ()
    return tuple(item.name for item in _of_module(target, persistent=False) if item.is_meta)


def _of_module(root: nn.Module, *, persistent: bool) -> Iterator[Target]:
    for prefix, module in root.named_modules(remove_duplicate=False):
        held = dict(module._parameters) if persistent else {}
        volatile = module._non_persistent_buffers_set
        held |= {name: b for name, b in module._buffers.items() if (name not in volatile) == persistent}
        for attribute, tensor in held.items():
            if tensor is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                yield Target.of(name, tensor, module, attribute)


def tied_groups(targets: Mapping[str, Target]) -> list[tuple[str, ...]]:
    """Names that share one tensor, in the target's order; groups of one are left out."""
    groups: dict[Any, list[str]] = {}
    for name, target in targets.items():
        groups.setdefault(target.identity, []).append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def overlapping(targets: Mapping[str, Target]) -> frozenset[str]:
    """Names whose memory may overlap that of another one without being the same view: tied in a way of their own."""
    spans = sorted((*span, name) for name, target in targets.items() if (span := span_of(target.tensor)) is not None)
    found: set[str] = set()
    widest: tuple[str, int, int, str] | None = None
    for device, begin, end, name in spans:
        if widest is not None and device == widest[0] and begin < widest[2]:
            same = targets[name].identity == targets[widest[3]].identity
            found |= set() if same else {name, widest[3]}
        if widest is None or device != widest[0] or end > widest[2]:
            widest = (device, begin, end, name)
    return frozenset(found)
