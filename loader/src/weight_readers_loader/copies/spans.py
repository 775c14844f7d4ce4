# SPDX-License-Identifier: Apache-2.0
"""Sets of bytes of a file as sorted spans ``(begin, end)``, and the spans that a tensor or a slice of it takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from weight_readers import TensorMeta, TensorPart
from weight_readers.slices import part_bounds, stretches

Span = tuple[int, int]

PAGE_BYTES = 4096
"""Spans are rounded to it: a mapping shows whole pages."""
GAP_BYTES = 64 << 10
"""Unwanted bytes between two spans that are fetched along, which costs less than one more request."""
_BLOCK_BYTES = 1024
"""More than a quantized block of any type: a reader that computes numbers reads whole blocks."""
_MOST_SPANS = 1 << 16


def union(spans: Iterable[Span], gap: int = 0) -> list[Span]:
    """The same bytes in as few spans as there can be; those joined that lie at most ``gap`` apart."""
    joined: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and begin - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def rounded(spans: Iterable[Span], nbytes: int) -> list[Span]:
    """The spans grown to whole pages of a file of ``nbytes``, and joined over short gaps."""
    pages = ((begin - begin % PAGE_BYTES, min(-(-end // PAGE_BYTES) * PAGE_BYTES, nbytes)) for begin, end in spans)
    return union(pages, GAP_BYTES)


def without(wanted: Sequence[Span], present: Sequence[Span]) -> list[Span]:
    """The bytes of ``wanted`` that are not ``present``. Both are sorted and apart, as `union` makes them."""
    left: list[Span] = []
    index = 0
    for begin, end in wanted:
        while index < len(present) and present[index][1] <= begin:
            index += 1
        at = index
        while at < len(present) and present[at][0] < end:
            if present[at][0] > begin:
                left.append((begin, present[at][0]))
            begin = max(begin, present[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left


def total(spans: Iterable[Span]) -> int:
    return sum(end - begin for begin, end in spans)


def batches(spans: Iterable[Span], most: int) -> Iterator[list[Span]]:
    """The spans in turn, cut where needed, in lists of at most ``most`` bytes."""
    batch: list[Span] = []
    room = most
    for begin, end in spans:
        while begin < end:
            count = min(end - begin, room)
            batch.append((begin, begin + count))
            begin, room = begin + count, room - count
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def spans_of(meta: TensorMeta, part: TensorPart | None) -> Iterator[Span]:
    """Where the bytes lie that a reader needs for the tensor, or for ``part`` of it: all of them and perhaps more.

    Elements lie in the order of the logical shape. Of a tensor that is to be computed from blocks, a part that is no
    single stretch may begin inside blocks anywhere: all of it is taken then.
    """
    begin, end = meta.offset, meta.offset + meta.nbytes
    if part is None or not meta.nbytes:
        yield begin, end
        return
    length, begins = stretches(meta.shape, part_bounds(part, meta.shape))
    if len(begins) > 1 and (meta.converted is not None or len(begins) > _MOST_SPANS):
        yield begin, end
        return
    count, pad = math.prod(meta.shape), _BLOCK_BYTES if meta.converted is not None else 0
    for each in begins:
        first, last = begin + meta.nbytes * each // count - pad, begin - (-meta.nbytes * (each + length) // count) + pad
        yield max(first, begin), min(last, end)
