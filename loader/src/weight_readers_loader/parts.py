# SPDX-License-Identifier: Apache-2.0
"""Targets that take a slice of a tensor each, as the caller says; of a DTensor its placements say it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from weight_readers import TargetMismatchError, TensorMeta, TensorPart
from weight_readers.slices import Bounds, bounds_in, bounds_in_units, part_words
from weight_readers_loader.targets import Target


@dataclass(frozen=True, kw_only=True, eq=False)
class Sliced:
    """What a plain tensor of the model holds, as `weight_readers_loader.targets.Part` has it."""

    whole: torch.Tensor
    shape: tuple[int, ...]
    bounds: Bounds

    def renewed(self, part: torch.Tensor) -> torch.Tensor:
        return part


def cut(
    targets: Mapping[str, Target], slices: Mapping[str, TensorPart], tensors: Mapping[str, TensorMeta]
) -> dict[str, Target]:
    """The targets, those of ``slices`` as parts of the tensors of these names.

    Raises ValueError for a slice that no target takes, SliceError for one that the tensor cannot be cut by, and
    TargetMismatchError where the target has another shape than the slice.
    """
    cuts = [_cut(targets, tensors[name], part) for name, part in slices.items()]
    return {**targets, **{target.name: target for target in cuts}}


def take_alike(what: str, targets: Sequence[Target]) -> None:
    """Raise TargetMismatchError where targets that are to hold the same take different parts of ``what``."""
    parts = {target.name: target.part.bounds if target.part else _all(target.shape) for target in targets}
    if len(set(parts.values())) > 1:
        raise TargetMismatchError(
            f"the targets {', '.join(sorted(parts))} take different parts of {what}",
            fix="Nothing was written; load them one after the other",
        )


def _all(shape: Sequence[int]) -> Bounds:
    return tuple((0, size) for size in shape)


def _cut(targets: Mapping[str, Target], meta: TensorMeta, part: TensorPart) -> Target:
    target = targets.get(meta.target) or targets.get(meta.name)
    if target is None:
        raise ValueError(f"slices: no target is called {meta.name!r}")
    if target.part is not None:
        raise ValueError(f"slices: {meta.name!r} is a DTensor here, whose placements say which part it holds")
    bounds = _bounds(meta, part)
    held, wanted = tuple(target.tensor.shape), tuple(stop - start for start, stop in bounds)
    if held != wanted:
        raise TargetMismatchError(
            f"target {target.name!r} is {list(held)}, and {part_words(part)} of the tensor in {meta.file} is "
            f"{list(wanted)}",
            fix="Nothing was written; give a target of the shape of the slice",
            shapes=((target.name, str(list(wanted)), str(list(held))),),
        )
    return replace(target, part=Sliced(whole=target.tensor, shape=meta.stored_shape, bounds=bounds))


def _bounds(meta: TensorMeta, part: TensorPart) -> Bounds:
    """The part in elements of the tensor in memory, of which packed types have fewer than the file."""
    if meta.shape == meta.stored_shape:
        return bounds_in(meta, part)
    size, stored = meta.shape[-1], meta.stored_shape[-1]
    *bounds, last = bounds_in_units(meta, part, size // math.gcd(size, stored), "stored element")
    return (*bounds, (last[0] * stored // size, last[1] * stored // size))
