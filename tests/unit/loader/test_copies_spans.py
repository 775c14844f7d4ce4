# SPDX-License-Identifier: Apache-2.0
"""Sets of bytes, against sets of numbers."""

from __future__ import annotations

import random

import pytest

from weight_readers import TensorMeta, TensorPart, TensorSlice
from weight_readers_loader.copies.spans import batches, rounded, spans_of, total, union, without


def numbers(spans: list[tuple[int, int]]) -> set[int]:
    return {n for begin, end in spans for n in range(begin, end)}


@pytest.mark.parametrize("seed", range(40))
def test_union_and_difference_are_those_of_sets(seed: int) -> None:
    source = random.Random(seed)

    def spans() -> list[tuple[int, int]]:
        return [(begin, begin + source.randint(0, 9)) for begin in source.choices(range(60), k=source.randint(0, 7))]

    one, two = spans(), spans()
    assert numbers(one) == numbers(union(one))
    assert all(a[1] < b[0] for a, b in zip(union(one), union(one)[1:], strict=False))
    left = without(union(one), union(two))
    assert numbers(one) - numbers(two) == numbers(left)
    assert total(left) == len(numbers(left))
    parts = list(batches(union(one), 4))
    assert numbers(one) == numbers([span for part in parts for span in part])
    assert all(total(part) == 4 for part in parts[:-1])


def test_spans_grow_to_pages_within_the_file_and_join_over_short_gaps() -> None:
    assert rounded([(5000, 5001), (80_000, 80_001), (999_999, 1_000_000)], 1_000_000) == [
        (4096, 8192),
        (77_824, 81_920),
        (999_424, 1_000_000),
    ]
    assert rounded([(0, 1), (70_000, 70_001)], 1_000_000) == [(0, 73_728)]


def meta(shape: tuple[int, ...], nbytes: int, converted: str | None = None) -> TensorMeta:
    return TensorMeta(
        name="t", dtype="uint8", source_dtype="Q", shape=shape, stored_shape=shape, nbytes=nbytes, file="f",
        offset=10_000, converted=converted,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "nbytes", "part", "expected"),
    [
        ((4, 6), 48, None, [(10_000, 10_048)]),
        ((4, 6), 48, TensorSlice(dim=0, start=1, stop=3), [(10_012, 10_036)]),
        ((4, 6), 48, TensorSlice(dim=1, start=1, stop=3), [(n, n + 4) for n in range(10_002, 10_048, 12)]),
        ((4, 6), 48, (TensorSlice(dim=0, stop=2), TensorSlice(dim=1, start=4)), [(10_008, 10_012), (10_020, 10_024)]),
        ((4, 64), 136, (TensorSlice(dim=1, start=32), TensorSlice(dim=0, start=3)), [(10_119, 10_136)]),
        ((4, 64), 136, TensorSlice(dim=0, start=3), [(10_102, 10_136)]),
        ((4, 64), 136, TensorSlice(dim=0, start=2, stop=2), []),
        ((0, 64), 0, TensorSlice(dim=0), [(10_000, 10_000)]),
    ],
)  # fmt: skip
def test_a_slice_takes_its_bytes(
    shape: tuple[int, ...], nbytes: int, part: TensorPart | None, expected: list[tuple[int, int]]
) -> None:
    assert numbers(expected) == numbers(list(spans_of(meta(shape, nbytes), part)))


def test_what_is_computed_from_blocks_takes_whole_blocks_around_a_slice() -> None:
    whole = (10_000, 10_000 + 340_000)
    computed = meta((100, 3200), 340_000, "asked for")
    ((begin, end),) = spans_of(computed, TensorSlice(dim=0, start=50, stop=51))
    assert begin <= 10_000 + 50 * 3400 - 292
    assert end >= 10_000 + 51 * 3400 + 292
    assert total([(begin, end)]) <= 3400 + 2048
    assert list(spans_of(computed, TensorSlice(dim=1, start=5, stop=9))) == [whole]
