# SPDX-License-Identifier: Apache-2.0
"""Which part of a tensor a rank holds: the rule here against what torch itself says of its placements."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from weight_readers import TargetMismatchError, TensorMeta, TensorSlice
from weight_readers_loader.distributed.placements import bounds_of, part_for, rows

CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = [
    ((8, 6), (4,), (Shard(0),)),
    ((7, 6), (4,), (Shard(0),)),  # 2, 2, 2, 1
    ((5, 6), (4,), (Shard(0),)),  # 2, 2, 1, 0
    ((3, 9), (4,), (Shard(-1),)),
    ((0, 4), (2,), (Shard(0),)),
    ((), (4,), (Replicate(),)),
    ((8, 6), (2, 2), (Shard(0), Shard(1))),
    ((9, 7), (2, 3), (Shard(1), Replicate())),
    ((16, 3), (2, 2), (Shard(0), Shard(0))),
    ((16, 3), (2, 4), (_StridedShard(0, split_factor=4), Shard(0))),
    ((16, 3), (2, 4), (_StridedShard(0, split_factor=1), Shard(1))),
]


@pytest.mark.parametrize(("shape", "mesh", "placements"), CASES, ids=str)
def test_every_rank_holds_what_torch_says(
    shape: tuple[int, ...], mesh: tuple[int, ...], placements: tuple[Any, ...]
) -> None:
    for coordinate in itertools.product(*map(range, mesh)):
        size, offset = _compute_local_shape_and_global_offset(shape, mesh, coordinate.__getitem__, placements)
        bounds = bounds_of(shape, mesh, coordinate, placements)
        assert tuple(stop - start for start, stop in bounds) == tuple(size)
        if all(size):
            assert tuple(start for start, _ in bounds) == tuple(offset)


@pytest.mark.parametrize("placement", [Partial(), Shard(2), _StridedShard(0, split_factor=3)], ids=str)
def test_a_placement_that_does_not_say_where_elements_are_is_refused(placement: Any) -> None:
    with pytest.raises(TargetMismatchError, match="placed as"):
        bounds_of((8, 6), (2, 2), (0, 0), (placement, Shard(0)))


def meta(shape: tuple[int, ...], stored: tuple[int, ...], source: str = "F32") -> TensorMeta:
    fields: dict[str, Any] = {"dtype": "uint8", "source_dtype": source, "nbytes": 0, "file": "f", "offset": 0}
    return TensorMeta(name="w", shape=shape, stored_shape=stored, **fields)


def test_there_is_a_slice_for_each_dimension_that_is_cut() -> None:
    rows, columns = TensorSlice(dim=0, start=0, stop=4), TensorSlice(dim=1, start=2, stop=4)
    assert part_for(meta((8, 8), (8, 8)), ((0, 4), (2, 4))) == (rows, columns)
    assert part_for(meta((8, 8), (8, 8)), ((0, 4), (0, 8))) == rows
    assert part_for(meta((8, 8), (8, 8)), ((0, 8), (2, 4))) == columns
    assert part_for(meta((8, 8), (8, 8)), ((0, 8), (0, 8))) is None
    assert part_for(meta((), ()), ()) is None


def test_a_slice_of_packed_bytes_counts_elements() -> None:
    packed = meta((4, 64), (4, 36), "Q4_0")  # 32 elements to 18 bytes
    assert part_for(packed, ((0, 4), (18, 36))) == TensorSlice(dim=1, start=32, stop=64)
    assert part_for(packed, ((0, 1), (18, 36))) == (
        TensorSlice(dim=0, start=0, stop=1),
        TensorSlice(dim=1, start=32, stop=64),
    )
    for held in ((0, 4), (0, 1)):
        with pytest.raises(TargetMismatchError, match=r"'w' of Q4_0 in f cannot be cut at 10 of dimension 1"):
            part_for(packed, (held, (10, 20)))


def test_rows_of_all_ranks_are_the_tensor_and_a_scalar_is_whole() -> None:
    parts = [rows(meta((5, 2), (5, 2)), rank, 4) for rank in range(4)]
    ends = [(0, 2), (2, 4), (4, 5), (5, 5)]
    assert [TensorSlice(dim=0, start=start, stop=stop) for start, stop in ends] == parts
    assert rows(meta((), ()), 1, 4) is None
