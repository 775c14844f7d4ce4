# SPDX-License-Identifier: Apache-2.0
"""From the ranges that fill each place to read requests: exact, joined where small, cut where long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from weight_readers_files import Range

MAX_PIECES = 1024
"""IOV_MAX: the buffers that one ``preadv`` fills."""
MAX_RUNS = 64
"""Reads of one request that do not adjoin. Many, because taking a request costs more than a small read."""


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


class Job:
    """One request: pieces of one file that one thread reads, in the order of their places."""

    __slots__ = ("_end", "length", "path", "pieces", "runs")

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

    def add(self, piece: Piece) -> None:
        _, _, offset, length = piece
        self.pieces.append(piece)
        self.length += length
        self.runs += offset != self._end
        self._end = offset + length

    def takes(self, path: str, piece: Piece, *, nbytes: int, runs: int) -> bool:
        """Whether the piece may be read along, within the limits.

        The rest of a place that earlier requests began is read alone: were it read along with a place that waits
        for room, the room that the first one takes would never become free.
        """
        place, _, offset, length = piece
        first, start, _, _ = self.pieces[0]
        if start and place != first:
            return False
        if self.length + length > nbytes or len(self.pieces) >= MAX_PIECES or path != self.path:
            return False
        return offset == self._end or self.runs < runs

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


def requests(places: Sequence[Ranges], *, chunk_bytes: int, joined_bytes: int) -> list[Job]:
    """The requests that fill ``places``, in their order.

    A range is cut every ``chunk_bytes``; requests for several ranges hold at most that and ``joined_bytes``. Ranges
    with gaps between them share a request only where there are so many that all threads stay busy. The division
    never depends on the number of threads.
    """
    limit = min(chunk_bytes, joined_bytes)
    runs = max(1, min(MAX_RUNS, sum(len(place.ranges) for place in places) // 256))
    jobs: list[Job] = []
    for path, piece in _pieces(places, chunk_bytes):
        if jobs and jobs[-1].takes(path, piece, nbytes=limit, runs=runs):
            jobs[-1].add(piece)
        else:
            jobs.append(Job(path, piece))
    return jobs


def _pieces(places: Sequence[Ranges], chunk_bytes: int) -> Iterator[tuple[str, Piece]]:
    for index, place in enumerate(places):
        path, done = place.path, 0
        for offset, length in place.ranges:
            for start in range(0, length, chunk_bytes):
                count = min(chunk_bytes, length - start)
                yield path, (index, done, offset + start, count)
                done += count


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
