# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""``(offset, length)``, in bytes from the start of the file."""


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


def cut(ranges: Sequence[Range], begin: int, end: int) -> list[Range]:
    """The part of ``ranges`` that fills the bytes ``begin:end`` of what they fill together."""
    part: list[Range] = []
    at = 0
    for offset, length in ranges:
        first, last = max(begin, at), min(end, at + length)
        if first < last:
            part.append((offset + first - at, last - first))
        at += length
    return part
