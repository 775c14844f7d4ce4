# SPDX-License-Identifier: Apache-2.0
"""Ranges at equal distances: the same as their list, in whatever is asked of them."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weight_readers_files import FilePlan, Stripes, Wanted, coalesce, cut, lies_everywhere, nbytes_of, pages_of

PAGE = mmap.PAGESIZE
KIB = 1 << 10


@st.composite
def drawn(draw: st.DrawFn) -> Stripes:
    length, gap = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    begin, count = draw(st.integers(0, 20)), draw(st.integers(1, 7))
    return Stripes(range(begin, begin + count * (length + gap), length + gap), length)


@given(drawn(), st.integers(0, 100), st.integers(0, 100), st.integers(-7, 6))
def test_stripes_are_what_their_list_is(stripes: Stripes, one: int, other: int, index: int) -> None:
    plain = [*stripes]
    begin, end = sorted(each % (nbytes_of(plain) + 1) for each in (one, other))

    assert stripes == plain
    assert (len(stripes), nbytes_of(stripes)) == (len(plain), sum(length for _, length in plain))
    assert [*cut(stripes, begin, end)] == cut(plain, begin, end)
    assert [*stripes[1:5]] == plain[1:5]
    assert stripes.covered == coalesce(plain, gap=9)[0]
    if -len(plain) <= index < len(plain):
        assert stripes[index] == plain[index]


def test_begins_that_count_elements_become_bytes_from_the_offset_on() -> None:
    assert Stripes.of(range(2, 12, 4), 3, scale=2, offset=100) == [(104, 6), (112, 6), (120, 6)]
    assert Stripes.of([2, 6, 11], 3, scale=2, offset=100) == [(104, 6), (112, 6), (122, 6)]
    assert Stripes.of((), 3) == []


def pages_touched(stripes: Stripes) -> set[int]:
    return {page for at, length in stripes for page in range(at // PAGE, (at + length - 1) // PAGE + 1)}


@given(st.integers(0, 2 * PAGE), st.integers(1, 3 * PAGE), st.integers(1, 3 * PAGE), st.booleans())
def test_what_storage_brings_in_for_few_stripes_is_the_pages_that_they_lie_in(
    begin: int, length: int, gap: int, to_page: bool
) -> None:
    step = -(-(length + gap) // PAGE) * PAGE if to_page else length + gap
    stripes = Stripes(range(begin, begin + 5 * step, step), length)
    brought = {page for at, size in pages_of([stripes]) for page in range(at // PAGE, (at + size - 1) // PAGE + 1)}
    assert brought == pages_touched(stripes)


@pytest.mark.parametrize(
    ("count", "gap", "ranges"),
    [(64, 16 * KIB, 1), (63, 16 * KIB, 63), (64, 16 * KIB + 1, 64), (2, PAGE - 1, 1), (2, 2 * PAGE, 2)],
)
def test_storage_brings_in_short_gaps_between_very_many_stripes(count: int, gap: int, ranges: int) -> None:
    stripes = Stripes(range(0, count * (PAGE + gap), PAGE + gap), PAGE)
    assert len(pages_of([stripes])) == ranges


@pytest.mark.parametrize(
    ("mib", "length", "step", "short_gap", "expected"),
    [
        (64, 4096, 8192, 0, False),
        (64, 4097, 8192, 0, True),
        (63, 4097, 8192, 0, False),
        (64, 2048, 16 * KIB, 0, False),
        (64, 2048, 16 * KIB, 16 * KIB, True),
        (64, 2048, 32 * KIB, 16 * KIB, False),
    ],
)
def test_columns_lie_everywhere_in_a_long_part_of_a_file_where_no_gap_between_them_is_left_out(
    mib: int, length: int, step: int, short_gap: int, expected: bool
) -> None:
    import torch

    end = (mib << 20) + length
    stripes = Stripes(range(0, end, step), length)
    wanted = Wanted("w", torch.uint8, (len(stripes), length), (step, 1), stripes, 0, sum(stripes[-1]), 0)
    assert lies_everywhere([wanted], short_gap=short_gap) is expected
    assert not lies_everywhere([wanted._replace(ranges=((0, end),))])
    assert FilePlan("p", None, [wanted], partial=True).pages() == pages_of([stripes])
