# SPDX-License-Identifier: Apache-2.0
"""All or nothing: the modules of a model as they were, put back where changing them fails."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from torch import nn

from weight_readers_gguf.model.slots import Slot


class Snapshot:
    """Remembers the modules that hold the slots, and restores them if the block it guards raises.

    Tensors are remembered, not copied: what is written into them stays.
    """

    def __init__(self, slots: Iterable[Slot]) -> None:
        modules = {id(holder.module): holder.module for slot in slots for holder in slot.holders}
        self._kept = [_Kept(module) for module in modules.values()]

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            for kept in self._kept:
                kept.restore()
        self._kept.clear()


class _Kept:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kind = type(module)
        self.attributes: dict[str, Any] = {**vars(module)}
        self.held: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (held, {**held}) for held in (module._parameters, module._buffers)
        ]

    def restore(self) -> None:
        self.module.__class__ = self.kind
        vars(self.module).clear()
        vars(self.module).update(self.attributes)
        for held, before in self.held:
            held.clear()
            held.update(before)
