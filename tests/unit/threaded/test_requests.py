# SPDX-License-Identifier: Apache-2.0
"""Requests: every wanted byte once, no other, in order, within the limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weight_readers_files import Stripes, cut
from weight_readers_threaded.requests import ALL, MAX_PIECES, MAX_RUNS, STRIPE_BYTES, Job, Scattered, requests


class Place(NamedTuple):
    path: str
    ranges: Sequence[tuple[int, int]]


def mixed(places: Sequence[Place], *, chunk: int = 1 << 20, joined: int = 1 << 20) -> list[Job | Scattered]:
    ranges = sum(len(place.ranges) for place in places)
    return list(requests(places, chunk_bytes=chunk, joined_bytes=joined, ranges=ranges))


def every(places: Sequence[Place], *, chunk: int = 1 << 20, joined: int = 1 << 20) -> list[Job]:
    return [job for job in mixed(places, chunk=chunk, joined=joined) if isinstance(job, Job)]


def asked(*places: Place, chunk: int = 100, joined: int = 1 << 30) -> list[list[tuple[int, int, int, int]]]:
    return [job.pieces for job in every(places, chunk=chunk, joined=joined)]


def test_a_long_range_is_cut_every_chunk() -> None:
    expected = [[(0, 0, 50, 100)], [(0, 100, 150, 100)], [(0, 200, 250, 40)]]
    assert expected == asked(Place("a", [(50, 240)]))


def test_small_adjoining_places_share_one_request() -> None:
    assert asked(Place("a", [(8, 10)]), Place("a", [(18, 20)])) == [[(0, 0, 8, 10), (1, 0, 18, 20)]]


def test_a_few_ranges_with_gaps_are_requests_of_their_own_so_that_threads_share_them() -> None:
    assert asked(Place("a", [(8, 10)]), Place("a", [(19, 20)])) == [[(0, 0, 8, 10)], [(1, 0, 19, 20)]]


def test_many_ranges_with_gaps_share_requests() -> None:
    jobs = every([Place("a", [(10 * n, 5) for n in range(100_000)])])
    assert (len(jobs), max(job.runs for job in jobs)) == (1563, MAX_RUNS)
    assert [[10 * n] for n in range(MAX_RUNS)] == [
        [offset for _, _, offset, _ in group] for group in jobs[0].adjoining()
    ]


def test_no_request_spans_two_files() -> None:
    assert asked(Place("a", [(8, 10)]), Place("b", [(18, 20)])) == [[(0, 0, 8, 10)], [(1, 0, 18, 20)]]


def test_places_without_bytes_have_no_request_and_do_not_part_the_others() -> None:
    places = Place("a", [(8, 10)]), Place("a", [(18, 0)]), Place("a", []), Place("a", [(18, 20)])
    assert asked(*places) == [[(0, 0, 8, 10), (3, 0, 18, 20)]]
    assert asked(Place("a", [(8, 0)]), Place("a", [])) == []


def test_the_ranges_of_a_place_fill_it_one_after_the_other() -> None:
    assert asked(Place("a", [(0, 3), (10, 4)])) == [[(0, 0, 0, 3)], [(0, 3, 10, 4)]]


def test_the_rest_of_a_place_is_not_read_along_with_the_next() -> None:
    """Or the next would wait for room that the first takes until it is whole."""
    expected = [[(0, 0, 0, 100)], [(0, 100, 100, 5)], [(1, 0, 105, 5), (2, 0, 110, 5)]]
    assert expected == asked(Place("a", [(0, 105)]), Place("a", [(105, 5)]), Place("a", [(110, 5)]))


def test_joined_requests_stay_within_the_bytes_that_may_be_in_flight() -> None:
    assert asked(Place("a", [(0, 6)]), Place("a", [(6, 6)]), joined=10) == [[(0, 0, 0, 6)], [(1, 0, 6, 6)]]
    assert asked(Place("a", [(0, 60)]), joined=10) == [[(0, 0, 0, 60)]]


def test_a_request_has_no_more_buffers_than_one_preadv_takes() -> None:
    jobs = every([Place("a", [(n, 1)]) for n in range(2 * MAX_PIECES + 1)])
    assert [len(job.pieces) for job in jobs] == [MAX_PIECES, MAX_PIECES, 1]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=4))),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_every_byte_is_read_once_into_its_place(
    shapes: list[tuple[str, list[tuple[int, int]]]], chunk: int, joined: int
) -> None:
    places, at = [], 0
    for path, gaps in sorted(shapes):
        ranges = []
        for gap, length in gaps:
            ranges.append((at + gap, length))
            at += gap + length
        places.append(Place(path, ranges))
    jobs = every(places, chunk=chunk, joined=joined)
    got: list[list[int]] = [[] for _ in places]
    for job in jobs:
        assert job.length == sum(length for _, _, _, length in job.pieces) <= chunk
        assert [*job.pieces] == [piece for group in job.adjoining() for piece in group]
        assert job.runs == len([*job.adjoining()])
        for place, start, offset, length in job.pieces:
            assert (job.path, start) == (places[place].path, len(got[place]))
            got[place] += range(offset, offset + length)
    assert [[byte for begin, n in place.ranges for byte in range(begin, begin + n)] for place in places] == got


def test_a_request_says_how_many_places_are_asked_for_in_full() -> None:
    places = [Place("a", [(0, 5)]), Place("a", [(5, 25)]), Place("a", []), Place("a", [(30, 5)]), Place("a", [])]
    jobs = every(places, chunk=10)
    assert [job.pieces[-1][0] for job in jobs] == [0, 1, 1, 1, 3]
    assert [job.requested for job in jobs] == [1, 1, 1, 3, ALL]


def stripes(begin: int, count: int, length: int, gap: int) -> Stripes:
    return Stripes(range(begin, begin + count * (length + gap), length + gap), length)


@given(
    st.lists(st.one_of(st.tuples(st.integers(64, 3000), st.integers(1, 9)), st.integers(0, 40)), max_size=5),
    st.integers(9, 300),
    st.integers(9, 300),
)
def test_every_stripe_is_read_once_into_its_place(shapes: list[object], chunk: int, joined: int) -> None:
    places: list[Place] = []
    at = 0
    for shape in shapes:
        ranges = stripes(at, *shape, gap=3) if isinstance(shape, tuple) else [(at, shape)]
        places.append(Place("a", ranges))
        at = sum(ranges[-1]) + 1
    got: list[list[tuple[int, int]]] = [[] for _ in places]
    for job in mixed(places, chunk=chunk, joined=joined):
        pieces = [*job.stripes] if isinstance(job, Scattered) else [(piece[2], piece[3]) for piece in job.pieces]
        start = job.start if isinstance(job, Scattered) else job.pieces[0][1]
        first = job.places[0]
        assert start == sum(length for _, length in got[first])
        assert (job.length, job.last) == (sum(length for _, length in pieces), job.places[-1])
        assert job.length <= chunk
        for place, piece in zip(job.places * len(pieces), pieces, strict=False):
            got[place].append(piece)
    assert [cut(list(place.ranges), 0, 1 << 30) for place in places] == [_joined(pieces) for pieces in got]


def _joined(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What was cut at the end of a chunk in one again: stripes never adjoin."""
    joined: list[tuple[int, int]] = []
    for offset, length in pieces:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((offset, length))
    return joined


@pytest.mark.parametrize(
    ("count", "length", "sizes"),
    [
        (64, 100, [64]),
        (1000, 100, [64] * 15 + [40]),
        (40_000, 100, [1024] * 39 + [64]),
        (64, STRIPE_BYTES, [16] * 4),
    ],
)
def test_short_stripes_of_one_place_are_requests_of_many(count: int, length: int, sizes: list[int]) -> None:
    jobs = mixed([Place("a", stripes(8, count, length, 5))])
    assert sizes == [len(job.stripes) for job in jobs if isinstance(job, Scattered)]
    assert len(jobs) == len(sizes)


def test_long_stripes_and_few_of_them_are_read_as_other_ranges_are() -> None:
    assert len(every([Place("a", stripes(0, 63, 10, 5))])) == 63
    assert len(every([Place("a", stripes(0, 64, STRIPE_BYTES + 1, 5))])) == 64


def test_no_other_place_is_read_along_with_stripes() -> None:
    places = [Place("a", [(0, 5)]), Place("a", stripes(5, 64, 1, 1)), Place("a", []), Place("a", [(200, 5)])]
    jobs = mixed(places)
    assert [type(job) for job in jobs] == [Job, Scattered, Job]
    assert [job.requested for job in jobs] == [1, 3, ALL]


def test_places_are_asked_for_as_requests_are() -> None:
    asked_for: list[int] = []

    def places() -> Iterator[Place]:
        for number in range(1000):
            asked_for.append(number)
            yield Place("a", [(10 * number, 10)])

    jobs = requests(places(), chunk_bytes=40, joined_bytes=1 << 20, ranges=1000)
    assert [piece[0] for piece in next(jobs).pieces] == [0, 1, 2, 3]
    assert asked_for == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 7, [(10, 3), (20, 4)]),
        (0, 3, [(10, 3)]),
        (3, 7, [(20, 4)]),
        (2, 4, [(12, 1), (20, 1)]),
        (4, 4, []),
    ],
)
def test_a_part_of_ranges_is_cut_by_what_they_fill(begin: int, end: int, expected: list[tuple[int, int]]) -> None:
    assert expected == cut([(10, 3), (20, 4)], begin, end)
