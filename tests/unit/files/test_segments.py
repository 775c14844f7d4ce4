# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weight_readers_files import Wanted
from weight_readers_files.segments import SEGMENT_BYTES, segments

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50)), max_size=20)


def bytes_of(begin: int, end: int) -> Wanted:
    return Wanted(f"{begin}", None, (end - begin,), None, (), begin, end, end - begin)  # type: ignore[arg-type]


@given(SPANS, st.integers(1, 100))
def test_every_tensor_is_in_one_segment_and_none_is_longer_than_allowed_unless_it_is_one_tensor(
    spans: list[tuple[int, int]], limit: int
) -> None:
    given_tensors, at = [], 0
    for gap, size in spans:
        given_tensors.append(bytes_of(at + gap, at + gap + size))
        at += gap + size
    runs = list(segments(given_tensors, segment_bytes=limit))
    assert given_tensors == [each for run in runs for each in run]
    assert [run for run in runs if len(run) > 1 and run[-1].end - run[0].begin > limit] == []


@given(SPANS, st.integers(1, 100))
def test_segments_are_as_few_as_the_order_allows(spans: list[tuple[int, int]], limit: int) -> None:
    given_tensors, at = [], 0
    for gap, size in spans:
        given_tensors.append(bytes_of(at + gap, at + gap + size))
        at += gap + size
    runs = list(segments(given_tensors, segment_bytes=limit))
    for run, following in pairwise(runs):
        assert following[0].end - run[0].begin > limit


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(0, 10)], [1]),
        ([(0, 4), (4, 10)], [2]),
        ([(0, 4), (4, 11)], [1, 1]),
        ([(0, 25), (25, 26)], [1, 1]),
        ([(0, 1), (9, 10)], [2]),
        ([(0, 1), (10, 11)], [1, 1]),
        ([(5, 5), (5, 15)], [2]),
        ([(0, 10), (10, 10)], [2]),
    ],
)
def test_segments_of_ten_bytes(
    wanted: Callable[[int, int], Wanted], spans: list[tuple[int, int]], expected: list[int]
) -> None:
    runs = segments([wanted(*span) for span in spans], segment_bytes=10)
    assert expected == [len(run) for run in runs]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 20), (0, 20)], [2]),
        ([(0, 20), (5, 8), (19, 30), (30, 31)], [3, 1]),
        ([(0, 20), (5, 8), (8, 12)], [3]),
        ([(0, 8), (4, 12), (12, 13)], [2, 1]),
    ],
)
def test_tensors_that_share_bytes_are_in_one_segment_however_long(
    wanted: Callable[[int, int], Wanted], spans: list[tuple[int, int]], expected: list[int]
) -> None:
    runs = segments([wanted(*span) for span in spans], segment_bytes=10)
    assert expected == [len(run) for run in runs]


def test_the_largest_known_checkpoints_stay_below_the_kernels_limit_of_mappings() -> None:
    assert 1500 * 10**9 // SEGMENT_BYTES < 65_530 // 2
