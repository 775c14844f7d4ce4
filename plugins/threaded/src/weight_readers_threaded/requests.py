# SPDX-License-Identifier: Apache-2.0
"""From the ranges that fill each place to read requests: exact, joined where small, cut where long."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from weight_readers_files import Range, Stripes, nbytes_of

MAX_PIECES = 1024
"""IOV_MAX: the buffers that one ``preadv`` fills."""
MAX_RUNS = 64
"""Reads of one request that do not adjoin. Many, because taking a request costs more than a small read."""
STRIPE_BYTES = 64 << 10
"""Shorter stripes of one place are a request by themselves, `Scattered`."""

ALL = sys.maxsize


class Ranges(Protocol):
    """What is read for one place: the ranges of the file fill its memory one after the other."""

    @property
    def path(self) -> str: ...

    @property
    def ranges(self) -> Sequence[Range]: ...


Piece = tuple[int, int, int, int]
"""``(place, start, offset, length)``: bytes of the file, and where in the place of that number they go.

A plain tuple, which the garbage collector leaves alone: a full collection, which many objects bring about, stops
every thread for as long as all the others take.
"""


class Scattered:
    """One request: stripes of one place, which fill it from ``start`` on. Of each there is no object: they are many."""

    __slots__ = ("path", "place", "requested", "start", "stripes")

    requested: int

    def __init__(self, path: str, place: int, start: int, stripes: Stripes) -> None:
        self.path = path
        self.place = place
        self.start = start
        self.stripes = stripes

    @property
    def length(self) -> int:
        return nbytes_of(self.stripes)

    @property
    def last(self) -> int:
        return self.place

    @property
    def places(self) -> Sequence[int]:
        return (self.place,)


class Job:
    """One request: pieces of one file that one thread reads, in the order of their places."""

    __slots__ = ("_end", "length", "path", "pieces", "requested", "runs")

    requested: int
    """How many places, from the first on, this request and those before it ask for in full."""

    def __init__(self, path: str, piece: Piece) -> None:
        _, _, offset, length = piece
        self.path = path
        self.pieces = [piece]
        self.length = length
        self.runs = 1
        self._end = offset + length

    @property
    def last(self) -> int:
        """The number of the last place it has bytes for."""
        return self.pieces[-1][0]

    @property
    def places(self) -> Sequence[int]:
        """The number of each piece's place."""
        return [place for place, _, _, _ in self.pieces]

    def takes(self, path: str, piece: Piece, nbytes: int, runs: int) -> bool:
        """Whether the piece is read along, which it is within the limits.

        The rest of a place that earlier requests began is read alone: were it read along with a place that waits
        for room, the room that the first one takes would never become free.
        """
        place, _, offset, length = piece
        first, start, _, _ = self.pieces[0]
        if start and place != first:
            return False
        if self.length + length > nbytes or len(self.pieces) >= MAX_PIECES or path != self.path:
            return False
        if offset != self._end:
            if self.runs >= runs:
                return False
            self.runs += 1
        self.pieces.append(piece)
        self.length += length
        self._end = offset + length
        return True

    def adjoining(self) -> Iterator[list[Piece]]:
        """The pieces in groups that lie side by side in the file: what one ``preadv`` reads."""
        if self.runs == 1:
            yield self.pieces
            return
        group: list[Piece] = []
        end = -1
        for piece in self.pieces:
            _, _, offset, length = piece
            if offset != end and group:
                yield group
                group = []
            group.append(piece)
            end = offset + length
        yield group


Request = Job | Scattered


def requests(places: Iterable[Ranges], *, chunk_bytes: int, joined_bytes: int, ranges: int) -> Iterator[Request]:
    """The requests that fill ``places``, in their order; places are asked for as they are needed.

    ``ranges`` is how many ranges there are in all. A range is cut every ``chunk_bytes``; requests for several ranges
    hold at most that and ``joined_bytes``. Ranges with gaps between them share a request only where there are so many
    that all threads stay busy. The division never depends on the number of threads.
    """
    limit = min(chunk_bytes, joined_bytes)
    request: Request | None = None
    for index, each in _divided(places, chunk_bytes, limit, max(1, min(MAX_RUNS, ranges // 256))):
        if request is not None:
            request.requested = index
            yield request
        request = each
    if request is not None:
        request.requested = ALL
        yield request


def _divided(places: Iterable[Ranges], chunk_bytes: int, limit: int, runs: int) -> Iterator[tuple[int, Request]]:
    """The requests, and the number of the place that each begins with."""
    job: Job | None = None
    for index, place in enumerate(places):
        path, ranges = place.path, place.ranges
        if isinstance(ranges, Stripes) and len(ranges) >= MAX_RUNS and ranges.length <= min(STRIPE_BYTES, limit):
            job = None
            yield from ((index, each) for each in _scattered(index, path, ranges, limit))
            continue
        for piece in _pieces(index, ranges, chunk_bytes):
            if job is None or not job.takes(path, piece, limit, runs):
                job = Job(path, piece)
                yield index, job


def _scattered(index: int, path: str, stripes: Stripes, limit: int) -> Iterator[Scattered]:
    """Requests of one size for all stripes of a place, several where there are enough of them."""
    count = min(MAX_PIECES, max(MAX_RUNS, len(stripes) // 16), limit // stripes.length)
    for first in range(0, len(stripes), count):
        yield Scattered(path, index, first * stripes.length, stripes[first : first + count])


def _pieces(index: int, ranges: Sequence[Range], chunk_bytes: int) -> Sequence[Piece]:
    if len(ranges) == 1 and 0 < ranges[0][1] <= chunk_bytes:
        return ((index, 0, *ranges[0]),)
    pieces: list[Piece] = []
    done = 0
    for offset, length in ranges:
        for start in range(0, length, chunk_bytes):
            count = min(chunk_bytes, length - start)
            pieces.append((index, done, offset + start, count))
            done += count
    return pieces
