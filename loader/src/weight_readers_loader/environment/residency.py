# SPDX-License-Identifier: Apache-2.0
"""How much of what is wanted lies in the page cache, by samples. Linux."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

from weight_readers_loader.environment.libc import libc

SAMPLES = 32
"""Asking takes about 15 µs for each file and 5 for each sample: half a millisecond, whatever the size."""

SAMPLE_BYTES = 1 << 20
_CACHESTAT = 451


class Span(NamedTuple):
    """Bytes ``begin:end`` of a file that are wanted."""

    path: str
    begin: int
    end: int


Ask = Callable[[int, int, int], int | None]
"""Pages of ``begin:end`` of an open file that are cached; None where that is not known."""


def sampled(spans: Sequence[Span]) -> list[Span]:
    """At most `SAMPLES` pieces of at most `SAMPLE_BYTES`, evenly over the bytes of ``spans``, by file."""
    ends = list(accumulate(max(0, span.end - span.begin) for span in spans))
    total = ends[-1] if ends else 0
    count = min(SAMPLES, total)
    length = min(SAMPLE_BYTES, -(-total // SAMPLES))
    found = [_piece(spans, ends, total * number // count, length) for number in range(count)]
    return sorted(set(found))


def _piece(spans: Sequence[Span], ends: Sequence[int], position: int, length: int) -> Span:
    number = bisect_right(ends, position)
    span = spans[number]
    begin = span.end - (ends[number] - position)
    return Span(span.path, begin, min(span.end, begin + length))


def residency(samples: Sequence[Span], *, asks: Sequence[Ask] | None = None) -> float | None:
    """The cached fraction of the pages of ``samples`` (sorted by file); None where nobody tells."""
    cached = pages = 0
    for path, pieces in groupby(samples, key=lambda piece: piece.path):
        counted = _of_file(path, list(pieces), asks or (by_cachestat, by_mincore))
        if counted is None:
            return None
        cached, pages = cached + counted[0], pages + counted[1]
    return min(1.0, cached / pages) if pages else None


def _of_file(path: str, pieces: Sequence[Span], asks: Sequence[Ask]) -> tuple[int, int] | None:
    try:
        # A FIFO must not be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError, AttributeError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        for ask in asks:
            counts = [ask(descriptor, piece.begin, piece.end) for piece in pieces]
            known = [count for count in counts if count is not None]
            if len(known) == len(counts):
                return sum(known), sum(_pages(piece.begin, piece.end) for piece in pieces)
    finally:
        os.close(descriptor)
    return None


def _pages(begin: int, end: int) -> int:
    return -(-end // mmap.PAGESIZE) - begin // mmap.PAGESIZE


def by_cachestat(descriptor: int, begin: int, end: int) -> int | None:
    """By cachestat(2), Linux 6.5 and later."""
    span, counts = (ctypes.c_uint64 * 2)(begin, end - begin), (ctypes.c_uint64 * 5)()
    if not hasattr(libc(), "syscall") or libc().syscall(_CACHESTAT, descriptor, span, counts, 0) != 0:
        return None
    return int(counts[0])


def by_mincore(descriptor: int, begin: int, end: int) -> int | None:
    """By mincore(2) of a mapping that nobody touches.

    For files that others own and that cannot be written the kernel says that all is cached, whatever is: then it is
    not known (Linux 5.2, so that nobody learns what others read).
    """
    if not hasattr(libc(), "mincore") or not _tells(descriptor):
        return None
    first = begin - begin % mmap.PAGESIZE
    address = libc().mmap(None, end - first, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, first)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    pages = _pages(begin, end)
    answer = ctypes.create_string_buffer(pages)
    try:
        told = libc().mincore(address, end - first, answer) == 0
    finally:
        libc().munmap(address, end - first)
    return sum(byte & 1 for byte in answer.raw[:pages]) if told else None


def _tells(descriptor: int) -> bool:
    return os.fstat(descriptor).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
