# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of a file."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import overload

Range = tuple[int, int]
"""``(offset, length)``, in bytes from the start of the file."""

_PAGE_BYTES = mmap.ALLOCATIONGRANULARITY

MANY = 64
SHORT_GAP = 16 << 10
"""Between `MANY` stripes: storage brings it in sooner than it answers one more request."""


class Stripes(Sequence[Range]):
    """Ranges of one ``length`` that begin at equal distances, as those of columns do. Each is made when asked for.

    begins: bytes from the start of the file, ascending, farther apart than ``length``.
    """

    __slots__ = ("begins", "length")

    def __init__(self, begins: range, length: int) -> None:
        self.begins = begins
        self.length = length

    @classmethod
    def of(cls, begins: Sequence[int], length: int, *, scale: int = 1, offset: int = 0) -> Sequence[Range]:
        """The ranges of ``length`` at ``begins``, a list where those are no `range`.

        Both count elements of ``scale`` bytes, from ``offset`` of the file on.
        """
        if isinstance(begins, range) and begins:
            last = begins[-1] * scale + offset
            return cls(range(begins[0] * scale + offset, last + 1, begins.step * scale), length * scale)
        return [(offset + begin * scale, length * scale) for begin in begins]

    def __len__(self) -> int:
        return len(self.begins)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.begins, repeat(self.length), strict=False)

    @overload
    def __getitem__(self, index: int) -> Range: ...

    @overload
    def __getitem__(self, index: slice) -> Stripes: ...

    def __getitem__(self, index: int | slice) -> Range | Stripes:
        if isinstance(index, slice):
            return Stripes(self.begins[index], self.length)
        return self.begins[index], self.length

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Stripes):
            return self.begins == other.begins and self.length == other.length
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Stripes({self.begins!r}, {self.length})"

    @property
    def covered(self) -> Range:
        """The one range from the first byte to the last."""
        return self.begins[0], self.begins[-1] + self.length - self.begins[0]

    def leave_no_gap(self, short: int) -> bool:
        """Whether no page lies between two of them that holds nothing of both, or few bytes between very many."""
        step, gap = self.begins.step, self.begins.step - self.length
        if len(self) == 1 or gap < _PAGE_BYTES or (gap <= short and len(self) >= MANY):
            return True
        # All begin equally far behind a page, then: either every gap holds a whole one or none does.
        to_page = -(self.begins[0] + self.length) % _PAGE_BYTES
        return step % _PAGE_BYTES == 0 and gap < to_page + _PAGE_BYTES


def nbytes_of(ranges: Sequence[Range]) -> int:
    """How many bytes they are together."""
    return len(ranges) * ranges.length if isinstance(ranges, Stripes) else sum(length for _, length in ranges)


def pages_of(ranges: Iterable[Sequence[Range]], *, short_gap: int = SHORT_GAP) -> list[Range]:
    """What storage is to bring in: all of them in file order, joined where no page lies between that could be left out.

    Very many stripes are joined, too, where they have ``short_gap`` bytes between them or fewer.
    """
    plain: list[Range] = []
    for each in ranges:
        plain += (each.covered,) if isinstance(each, Stripes) and each.leave_no_gap(short_gap) else each
    return coalesce(plain, gap=_PAGE_BYTES - 1)


def coalesce(ranges: Iterable[Range], gap: int = 0) -> list[Range]:
    """Ranges in file order, with those joined that overlap or lie at most ``gap`` bytes apart.

    Reading up to ``gap`` unwanted bytes can cost less than one more request. Empty ranges vanish.
    """
    if gap < 0:
        raise ValueError(f"gap must be at least 0, not {gap}")
    joined: list[Range] = []
    for offset, length in sorted(each for each in ranges if each[1]):
        if joined and offset - sum(joined[-1]) <= gap:
            begin, so_far = joined[-1]
            joined[-1] = (begin, max(so_far, offset + length - begin))
        else:
            joined.append((offset, length))
    return joined


def cut(ranges: Sequence[Range], begin: int, end: int) -> Sequence[Range]:
    """The part of ``ranges`` that fills the bytes ``begin:end`` of what they fill together."""
    if isinstance(ranges, Stripes) and begin < end:
        first, last = begin // ranges.length, -(-end // ranges.length)
        ranges, begin, end = ranges[first:last], begin - first * ranges.length, end - first * ranges.length
        if begin == 0 and end == len(ranges) * ranges.length:
            return ranges
    part: list[Range] = []
    at = 0
    for offset, length in ranges:
        first, last = max(begin, at), min(end, at + length)
        if first < last:
            part.append((offset + first - at, last - first))
        at += length
    return part
