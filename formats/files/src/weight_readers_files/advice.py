# SPDX-License-Identifier: Apache-2.0
"""What the kernel is told of the bytes that will be read of an open file, so that storage is never idle."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

from weight_readers_files.ranges import Range

_PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
# The kernel caps one request at the device's read-ahead window or its largest transfer, whichever is more, and
# drops the rest of a longer one without a word. 128 KiB is the usual window.
_ADVICE_BYTES = 128 * 1024
_PIECE_BYTES = 1 << 20

WINDOW_BYTES = 32 << 20
"""How far advice runs ahead of reading: what it brings in must still be cached when its turn comes."""


def will_need(descriptor: int, ranges: Iterable[Range]) -> None:
    """Ask the kernel for these ``(offset, length)`` ranges, rounded to pages, without waiting for them."""
    if not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):  # It is advice; what is wrong with the file shows when it is read.
        for offset, length in ranges:
            for begin in range(offset - offset % _PAGE_BYTES, offset + length, _ADVICE_BYTES):
                count = min(_ADVICE_BYTES, offset + length - begin)
                os.posix_fadvise(descriptor, begin, count, os.POSIX_FADV_WILLNEED)


class Ahead:
    """Advice for ``ranges``, which are in file order, each part of them once, ``window`` bytes ahead of the reading.

    Several threads may read by it.
    """

    def __init__(self, ranges: Iterable[Range], *, window: int = WINDOW_BYTES) -> None:
        self._pieces = _pieces(ranges)
        self._upcoming = next(self._pieces, None)
        self._window = window
        self._lock = threading.Lock()

    def read_to(self, descriptor: int, end: int) -> None:
        """Bytes before ``end`` are read now."""
        if self._upcoming is not None and self._upcoming[0] < end + self._window:
            will_need(descriptor, self._taken(end + self._window))

    def _taken(self, limit: int) -> list[Range]:
        taken: list[Range] = []
        with self._lock:
            while self._upcoming is not None and self._upcoming[0] < limit:
                taken.append(self._upcoming)
                self._upcoming = next(self._pieces, None)
        return taken


def _pieces(ranges: Iterable[Range]) -> Iterator[Range]:
    for offset, length in ranges:
        for begin in range(offset, offset + length, _PIECE_BYTES):
            yield begin, min(_PIECE_BYTES, offset + length - begin)
