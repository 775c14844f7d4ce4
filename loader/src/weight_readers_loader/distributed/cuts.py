# SPDX-License-Identifier: Apache-2.0
"""What is read of tensors of which this rank holds a part, and what is left to cut of them in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from weight_readers import TensorMeta, TensorSlice
from weight_readers_loader.distributed.placements import Bounds, is_cut_further, rest_of, slice_for
from weight_readers_loader.targets import Target


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """By checkpoint name. ``slices`` are read, of one dimension each; ``rest`` are those that are cut in others too."""

    bounds: Mapping[str, Bounds]
    slices: Mapping[str, TensorSlice]
    rest: frozenset[str]

    @classmethod
    def of(cls, targets: Mapping[str, Target], tensors: Mapping[str, TensorMeta]) -> Cuts:
        """``targets`` and ``tensors`` by checkpoint name. Raises TargetMismatchError for a part that no slice is."""
        bounds = {name: target.part.bounds for name, target in targets.items() if target.part is not None}
        slices = {name: slice_for(tensors[name], part) for name, part in bounds.items()}
        return cls(
            bounds=bounds,
            slices={name: part for name, part in slices.items() if part is not None},
            rest=frozenset(name for name, part in bounds.items() if is_cut_further(tensors[name], part)),
        )

    def apply(self, name: str, tensor: torch.Tensor, read: TensorSlice | None) -> torch.Tensor:
        """The part that this rank holds, of the slice that was ``read``; None is the whole."""
        part = self.bounds.get(name)
        return tensor if part is None else rest_of(tensor, part, read)
