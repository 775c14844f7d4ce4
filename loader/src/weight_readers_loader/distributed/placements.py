# SPDX-License-Identifier: Apache-2.0
"""From DTensor placements on a mesh to the part of a tensor that a rank holds, and to the slices that read it.

Pure functions. The rule is that of ``torch.chunk``: each rank holds the size divided by the number of ranks, rounded
up, and the last ones what is left, which may be nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weight_readers import TargetMismatchError, TensorMeta, TensorPart, TensorSlice
from weight_readers.slices import Bounds
from weight_readers_loader.portions import plainest


def share(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """The part of ``size`` rows that one of ``ranks`` holds."""
    chunk = -(-size // ranks)
    start = min(size, chunk * rank)
    return start, min(size, start + chunk)


def bounds_of(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]
) -> Bounds:
    """The part that the rank at ``coordinate`` of a mesh of that size holds, in elements as they are in memory.

    Raises TargetMismatchError for a placement that does not say of every element where it is.
    """
    bounds = [(0, size) for size in shape]
    for place in _in_order(mesh, placements, len(shape)):
        dim = placements[place].dim % len(shape)
        start, stop = bounds[dim]
        first, last = share(stop - start, coordinate[place], mesh[place])
        bounds[dim] = (start + first, start + last)
    return tuple(bounds)


def _in_order(mesh: Sequence[int], placements: Sequence[Any], dims: int) -> list[int]:
    """The dimensions of the mesh that shard, as they were applied: from the left, but for a strided one.

    FSDP shards what tensor parallelism has sharded already, and comes first in the mesh: its placement says in
    ``split_factor`` how many parts there were by then.
    """
    places = [place for place, placement in enumerate(placements) if _shards(placement, dims)]
    order: list[int] = []
    for place in reversed(places):
        later = 1
        at = 0
        factor = getattr(placements[place], "split_factor", 1)
        while later < factor and at < len(order):
            same = placements[order[at]].dim % dims == placements[place].dim % dims
            later *= mesh[order[at]] if same else 1
            at += 1
        if later != factor:
            raise _unknown(placements[place])
        order.insert(at, place)
    return order


def _shards(placement: Any, dims: int) -> bool:
    if placement.is_replicate():
        return False
    dim = getattr(placement, "dim", None)
    if placement.is_partial() or not isinstance(dim, int) or not -dims <= dim < dims:
        raise _unknown(placement)
    return True


def _unknown(placement: Any) -> TargetMismatchError:
    return TargetMismatchError(
        f"no weights can be read for a tensor placed as {placement}",
        fix="Place parameters by Shard and Replicate, as fully_shard and parallelize_module do",
    )


def part_for(meta: TensorMeta, bounds: Bounds) -> TensorPart | None:
    """The part as slices in logical elements, one for each dimension that is cut; None for all.

    Raises TargetMismatchError where the part begins or ends inside an element of the file (packed types).
    """
    cut = [dim for dim, (each, size) in enumerate(zip(bounds, meta.stored_shape, strict=True)) if each != (0, size)]
    slices = [_slice(meta, dim, bounds[dim]) for dim in cut]
    return plainest(tuple(slices)) if slices else None


def _slice(meta: TensorMeta, dim: int, ends: tuple[int, int]) -> TensorSlice:
    start, stop = (_logical(meta, dim, end) for end in ends)
    return TensorSlice(dim=dim, start=start, stop=stop)


def _logical(meta: TensorMeta, dim: int, end: int) -> int:
    whole, rest = divmod(end * meta.shape[dim], meta.stored_shape[dim])
    if rest:
        raise TargetMismatchError(
            f"tensor {meta.name!r} of {meta.source_dtype} in {meta.file} cannot be cut at {end} of dimension {dim}: "
            f"its {meta.stored_shape[dim]} bytes there hold {meta.shape[dim]} elements",
            fix="Shard it over fewer ranks, or by rows: Shard(0)",
        )
    return whole


def rows(meta: TensorMeta, rank: int, ranks: int) -> TensorPart | None:
    """One of ``ranks`` equal parts along the first dimension, as ``Shard(0)`` cuts; None for a tensor of none."""
    if not meta.stored_shape:
        return None
    first = share(meta.stored_shape[0], rank, ranks)
    return part_for(meta, (first, *((0, size) for size in meta.stored_shape[1:])))
