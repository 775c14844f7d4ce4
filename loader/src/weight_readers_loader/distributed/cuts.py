# SPDX-License-Identifier: Apache-2.0
"""What is read of tensors of which this rank holds a part, and what is left to cut of them in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from weight_readers import TensorMeta, TensorPart
from weight_readers.slices import Bounds
from weight_readers_loader.distributed.placements import part_for
from weight_readers_loader.targets import Target


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """By checkpoint name: where the parts lie, and as what they are asked of a reader."""

    bounds: Mapping[str, Bounds]
    slices: Mapping[str, TensorPart]

    @classmethod
    def of(cls, targets: Mapping[str, Target], tensors: Mapping[str, TensorMeta]) -> Cuts:
        """``targets`` and ``tensors`` by checkpoint name. Raises TargetMismatchError for a part that no slice is."""
        bounds = {name: target.part.bounds for name, target in targets.items() if target.part is not None}
        slices = {name: part_for(tensors[name], part) for name, part in bounds.items()}
        return cls(bounds=bounds, slices={name: part for name, part in slices.items() if part is not None})

    def apply(self, name: str, tensor: torch.Tensor, *, whole: bool) -> torch.Tensor:
        """The part that this rank holds: the tensor, or its part where it came ``whole``."""
        part = self.bounds.get(name)
        return tensor[tuple(slice(*each) for each in part)] if whole and part is not None else tensor
