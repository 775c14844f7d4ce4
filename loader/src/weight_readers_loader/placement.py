# SPDX-License-Identifier: Apache-2.0
"""Put tensors where they belong in a module or a mapping, according to an audited plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from weight_readers import CheckpointError, TensorMeta, TiedWeightsError
from weight_readers_loader.audit import audit
from weight_readers_loader.targets import meta_buffers, targets_of, tied_groups

Weights = Iterable[tuple[str, torch.Tensor]]


class Placement:
    """One load: the audited plan, and how it is carried out.

    Tensors that exist are written in place as they come. Those on the meta device are replaced all together at
    the end, so that a load that fails leaves them as they were.
    """

    def __init__(
        self,
        target: nn.Module | Mapping[str, torch.Tensor],
        tensors: Mapping[str, TensorMeta],
        *,
        aliases: Mapping[str, str],
        strict: bool,
        cast: bool,
    ) -> None:
        self._tensors = tensors
        self._targets = targets_of(target)
        self._tied = tied_groups(self._targets)
        self._left_on_meta = meta_buffers(target)
        self._plan = audit(tensors, self._targets, tied=self._tied, aliases=aliases, strict=strict, cast=cast)

    @property
    def skips_some(self) -> bool:
        return bool(self._plan.unexpected)

    @property
    def all_in_place(self) -> bool:
        return not any(target.is_meta for target in self._targets.values())

    def wants(self, name: str) -> bool:
        return name in self._plan.assignments

    def check_tied(self, read: Callable[[Collection[str]], Weights]) -> None:
        """Raise TiedWeightsError where the checkpoint holds two values for one parameter; reads only those."""
        source_of = {name: source for source, names in self._plan.assignments.items() for name in names}
        for group in self._tied:
            sources = list(dict.fromkeys(source_of[name] for name in group if name in source_of))
            if len(sources) > 1:
                self._check_equal(sources, dict(read(sources)))

    def _check_equal(self, sources: list[str], tensors: Mapping[str, torch.Tensor]) -> None:
        first = sources[0]
        for other in sources[1:]:
            if not _same_bytes(tensors[first], tensors[other]):
                raise TiedWeightsError(
                    "two names of one parameter hold different values",
                    path=self._tensors[other].file,
                    tensor=other,
                    expected=f"the bytes of {first!r}",
                    found="other bytes",
                    fix="Untie the parameters in the model, or load a checkpoint that was saved tied",
                )

    def fill(self, weights: Weights) -> None:
        """Write or replace every target. A CheckpointError on the way says in ``written`` what was written."""
        written: list[str] = []
        replacements: list[tuple[str, torch.Tensor]] = []
        try:
            for source, tensor in weights:
                for name in self._plan.assignments[source]:
                    if self._targets[name].is_meta:
                        replacements.append((name, tensor.to(self._targets[name].tensor.dtype)))
                    else:
                        self._targets[name].write(tensor)
                        written.append(name)
        except CheckpointError as error:
            error.written = tuple(written)
            raise
        self._replace(replacements)

    def _replace(self, replacements: Iterable[tuple[str, torch.Tensor]]) -> None:
        groups = {name: group for group in self._tied for name in group}
        replaced: set[str] = set()
        for name, tensor in replacements:
            if name in replaced:
                continue
            new = self._targets[name].materialised(tensor)
            for tied in groups.get(name, (name,)):
                self._targets[tied].replace(new)
                replaced.add(tied)

    def remarks(self) -> dict[str, Any]:
        """The fields of a `LoadReport` that the plan knows."""
        plan = self._plan
        return {
            "missing": plan.missing,
            "unexpected": plan.unexpected,
            "aliases": plan.aliases,
            "cast": plan.cast,
            "tied": tuple(self._tied),
            "left_on_meta": self._left_on_meta,
        }


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By bytes, not by value: NaN is equal to itself here, and not every dtype has a comparison."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    raw = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*raw)
