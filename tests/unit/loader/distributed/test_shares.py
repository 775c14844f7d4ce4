# SPDX-License-Identifier: Apache-2.0
"""Who reads which bytes, and in which buckets they travel."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weight_readers import TensorMeta
from weight_readers_loader.distributed.shares import PACKED, Segment, schedule, shares

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=8)


def metas(shapes: list[tuple[int, ...]], dtype: str = "float32", itemsize: int = 4) -> dict[str, TensorMeta]:
    found: dict[str, TensorMeta] = {}
    for number, shape in enumerate(shapes):
        name, nbytes = f"t{number}", math.prod(shape) * itemsize
        fields = {"source_dtype": "F32", "file": "f", "offset": 0, "dtype": dtype}
        found[name] = TensorMeta(name=name, shape=shape, stored_shape=shape, nbytes=nbytes, **fields)
    return found


@given(SHAPES, st.integers(1, 5), st.integers(1, 40))
def test_every_byte_is_read_once_and_travels_once(shapes: list[tuple[int, ...]], ranks: int, bucket: int) -> None:
    tensors = metas(shapes)
    parts = shares(tensors, ranks)
    read = [(s.name, at) for segments in parts for s in segments for at in range(s.begin, s.end)]
    expected = [(name, at) for name, meta in tensors.items() for at in range(meta.nbytes)]
    assert read == expected
    buckets = [each for turn in schedule(parts, bucket) for each in turn]
    sent = sorted((p.name, at) for b in buckets for p in b.pieces for at in range(p.begin, p.end))
    assert sent == sorted(expected)
    assert all(0 < b.nbytes <= bucket for b in buckets)
    for owner, segments in enumerate(parts):
        own = [(p.name, at) for b in buckets if b.owner == owner for p in b.pieces for at in range(p.begin, p.end)]
        assert own == [(s.name, at) for s in segments for at in range(s.begin, s.end)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_shares_are_equal_but_for_a_row(ranks: int) -> None:
    tensors = metas([(1000, 64), (3, 64), (64,), (1, 500, 64)])
    total = sum(meta.nbytes for meta in tensors.values())
    for segments in shares(tensors, ranks):
        assert abs(sum(segment.stored for segment in segments) - total / ranks) <= 64 * 4


def test_owners_take_turns() -> None:
    parts = [[Segment("a", None, 0, 30, 30)], [Segment("b", None, 0, 10, 10)]]
    assert [[bucket.owner for bucket in turn] for turn in schedule(parts, 10)] == [[0, 1], [0], [0]]


def test_large_pieces_travel_alone_and_small_ones_together() -> None:
    sizes = {"a": 3, "b": PACKED + 1, "c": 5, "d": PACKED}
    segments = [Segment(name, None, 0, size, size) for name, size in sizes.items()]
    ((bucket,),) = schedule([segments], 4 * PACKED)
    assert [[piece.name for piece in parcel] for parcel in bucket.parcels] == [["b"], ["a", "c", "d"]]


def test_a_tensor_whose_rows_hold_no_whole_elements_is_not_cut() -> None:
    odd = TensorMeta(
        name="w", dtype="uint8", source_dtype="F6", shape=(4,), stored_shape=(3,), nbytes=3, file="f", offset=0
    )
    parts = shares({"w": odd}, 2)
    assert sorted(map(len, parts)) == [0, 1]
    assert [segment.part for segments in parts for segment in segments] == [None]
