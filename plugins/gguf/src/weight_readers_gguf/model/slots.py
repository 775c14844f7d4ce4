# SPDX-License-Identifier: Apache-2.0
"""Where a model keeps its tensors, and the names under which one tensor is known (tied weights)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@dataclass(frozen=True)
class Holder:
    """One module that has the tensor, under ``attribute``."""

    module: nn.Module
    attribute: str

    def set(self, tensor: torch.Tensor) -> None:
        """Put ``tensor`` there, as what it was: a parameter or a buffer."""
        held = self.module._parameters if self.attribute in self.module._parameters else self.module._buffers
        held[self.attribute] = tensor  # type: ignore[assignment]


@dataclass(eq=False)
class Slot:
    """One parameter or persistent buffer: all of its names in the model's order, and its holders.

    ``home`` is the device of the weight that a packed one without memory stands in for.
    """

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    home: torch.device = torch.device("cpu")

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def is_lazy(self) -> bool:
        return bool(is_lazy(self.tensor))

    def redeclare(self, tensor: torch.Tensor) -> None:
        """Have every holder hold ``tensor`` in the place of the slot's."""
        if isinstance(self.tensor, nn.Parameter) and not isinstance(tensor, nn.Parameter):
            floating = tensor.is_floating_point() or tensor.is_complex()
            tensor = nn.Parameter(tensor, requires_grad=self.tensor.requires_grad and floating)
            tensor.__dict__.update(self.tensor.__dict__)  # what engines hang on parameters
        self.tensor = tensor
        for holder in self.holders:
            holder.set(tensor)


def slots_of(model: nn.Module) -> dict[str, Slot]:
    """Every name of a parameter or persistent buffer -> its slot; tied names share one."""
    by_tensor: dict[int, Slot] = {}
    by_name: dict[str, Slot] = {}
    for name, holder, tensor in _held(model):
        slot = by_tensor.setdefault(id(tensor), Slot(tensor))
        slot.names.append(name)
        if holder not in slot.holders:
            slot.holders.append(holder)
        by_name[name] = slot
    return by_name


def distinct(slots: Mapping[str, Slot]) -> list[Slot]:
    """The slots, each once, in the model's order."""
    return list(dict.fromkeys(slots.values()))


def without_memory(model: nn.Module) -> tuple[str, ...]:
    """Names of non-persistent buffers on the meta device: no checkpoint has them, the model has to compute them."""
    found = []
    for prefix, module in model.named_modules():
        for attribute in module._non_persistent_buffers_set:
            buffer = module._buffers.get(attribute)
            if buffer is not None and buffer.is_meta:
                found.append(f"{prefix}.{attribute}" if prefix else attribute)
    return tuple(sorted(found))


def _held(model: nn.Module) -> Iterator[tuple[str, Holder, torch.Tensor]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        volatile = module._non_persistent_buffers_set
        held: dict[str, torch.Tensor | None] = {**module._parameters}
        held |= {name: buffer for name, buffer in module._buffers.items() if name not in volatile}
        for attribute, tensor in held.items():
            if tensor is not None:
                yield f"{prefix}.{attribute}" if prefix else attribute, Holder(module, attribute), tensor
