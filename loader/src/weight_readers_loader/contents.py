# SPDX-License-Identifier: Apache-2.0
"""What the files of one checkpoint hold, what adapters make of that, and what an operation wants of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from weight_readers import MissingTensorError, TensorMeta, TensorPart
from weight_readers.spelling import did_you_mean
from weight_readers_loader.adapters import Adapted, Adapter
from weight_readers_loader.arguments import function, slices_by_name
from weight_readers_loader.placement import Placement
from weight_readers_loader.wanted import KeyFilter, Wanted
from weight_readers_loader.wording import some


@dataclass(frozen=True, kw_only=True)
class Contents:
    """``restricted`` files hold more than ``tensors``; ``path`` is what a message calls the checkpoint."""

    tensors: Mapping[str, TensorMeta]
    aliases: Mapping[str, str] = field(default_factory=dict)
    adapters: Sequence[Adapter] = ()
    restricted: bool = False
    path: str = ""

    @cached_property
    def adapted(self) -> Adapted:
        """All of it, after the adapters. Raises what `Adapted` raises where they do not fit."""
        return Adapted(self.adapters, self.tensors, check=True)

    def must_have(self, names: Iterable[str], tensors: Mapping[str, TensorMeta] | None = None) -> None:
        """Raise MissingTensorError for a name that is in no file, or not in ``tensors``."""
        there = self.tensors if tensors is None else tensors
        for name in names:
            if name not in there:
                fix = did_you_mean(name, there) or f"It has {some(list(there), 5)}"
                raise MissingTensorError("no such tensor", path=self.path, tensor=name, fix=fix)

    def wanted(self, key_filter: KeyFilter | None, slices: Mapping[str, TensorPart] | None = None) -> Wanted:
        """What is read of the files. Raises MissingTensorError for a slice of a name that is in no file."""
        function("key_filter", key_filter, "a name that says whether the tensor is wanted")
        slices_by_name(slices)
        self.must_have(slices or ())
        return Wanted.of(self.tensors, key_filter, slices, restricted=self.restricted)

    def wanted_and_adapted(
        self, key_filter: KeyFilter | None, slices: Mapping[str, TensorPart] | None
    ) -> tuple[Wanted, Adapted]:
        """What is read for those that the filter takes, and what becomes of that."""
        wanted = self.wanted(key_filter, slices)
        if not self.adapters:
            return wanted, Adapted((), wanted.tensors)
        adapted = Adapted(self.adapters, wanted.tensors)
        changed = adapted.needs - set(adapted.untouched().values())
        for name in wanted.slices:
            if name in changed:
                raise ValueError(f"slices: an adapter changes {name!r}, so that no part of it can be read alone")
        return wanted.only(adapted.needs), adapted

    def placed(self, placement: Placement) -> tuple[Wanted, Adapted]:
        """What is read to fill the targets of ``placement``, and what becomes of that."""
        adapted = self.adapted.only(placement.wanted)
        return self.wanted(None, placement.slices(adapted)).only(adapted.needs), adapted

    def placement(
        self,
        target: nn.Module | Mapping[str, torch.Tensor],
        *,
        resolve_aliases: bool,
        slices: Mapping[str, TensorPart] | None = None,
        **how: Any,
    ) -> Placement:
        """The audited plan for ``target``; ``how`` is the rest of what `Placement` takes, and it raises."""
        self.check_aliases(resolve_aliases)
        slices_by_name(slices)
        self.must_have(slices or (), self.adapted.tensors)
        how["slices"] = slices
        aliases = {} if self.adapters else self.aliases
        return Placement(target, self.adapted.tensors, aliases=aliases, resolve_aliases=resolve_aliases, **how)

    def check_aliases(self, resolve_aliases: bool) -> None:
        """Raise ValueError where aliases are asked for, which are names of the files, and adapters make others."""
        if resolve_aliases and self.adapters:
            raise ValueError(
                "resolve_aliases=True (--aliases) and adapters exclude each other: aliases are names of the files"
            )

    def named(self, tensors: Collection[str], *, resolve_aliases: bool) -> dict[str, str]:
        """Alias -> the one of ``tensors`` that it is a name of; none unless they are asked for."""
        return {alias: name for alias, name in self.aliases.items() if resolve_aliases and name in tensors}
