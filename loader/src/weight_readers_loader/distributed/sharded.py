# SPDX-License-Identifier: Apache-2.0
"""Tensors of which a rank holds a part: what lies behind a DTensor, and how a new one is made."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from weight_readers import TargetMismatchError
from weight_readers.slices import Bounds
from weight_readers_loader.distributed.placements import bounds_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Sharded:
    """A DTensor, the plain tensor of its part on this rank, and where in the whole that part lies."""

    whole: Any
    local: torch.Tensor
    bounds: Bounds

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.whole.shape)

    def renewed(self, part: torch.Tensor) -> torch.Tensor:
        """A DTensor of the same mesh, placements and global shape, over ``part``."""
        made: torch.Tensor = type(self.whole).from_local(
            part.contiguous(),
            self.whole.device_mesh,
            self.whole.placements,
            run_check=False,
            shape=self.whole.shape,
            stride=self.whole.stride(),
        )
        return made


def sharded(name: str, tensor: torch.Tensor) -> Sharded | None:
    """What this rank holds of ``tensor``, where that is a DTensor. Runs no collective.

    Raises TargetMismatchError where this rank is not in the mesh, for placements that hold no elements (Partial),
    and for parts that torch lays out otherwise.
    """
    module = sys.modules.get("torch.distributed.tensor")  # without it there are none; to import it takes a second
    if module is None or not isinstance(tensor, module.DTensor):
        return None
    mesh, where = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if where is None:
        raise TargetMismatchError(f"target {name!r} is a DTensor on ranks that this one is not among")
    bounds = bounds_of(tensor.shape, mesh.shape, where, tensor.placements)
    with torch.no_grad():
        local = tensor.to_local()
    if tuple(local.shape) != (part := tuple(stop - start for start, stop in bounds)):
        raise TargetMismatchError(
            f"target {name!r} is placed as {tensor.placements}, of which this rank holds {list(local.shape)}, and "
            f"{list(part)} was expected",
            fix="Place parameters by Shard and Replicate, as fully_shard and parallelize_module do",
        )
    return Sharded(whole=tensor, local=local, bounds=bounds)
