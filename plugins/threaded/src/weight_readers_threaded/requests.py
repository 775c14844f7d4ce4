# SPDX-License-Identifier: Apache-2.0
"""From units of bytes to read requests: exact ranges, joined where they adjoin and cut where they are long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

MAX_PIECES = 1024
"""IOV_MAX: the buffers that one ``preadv`` fills."""

Range = tuple[int, int]
"""``(offset, length)`` in bytes of the file."""


@dataclass(frozen=True)
class Unit:
    """Bytes that become whole together: a tensor, or a block of one. The ranges fill its memory one after another."""

    name: str
    path: str
    ranges: Sequence[Range]


@dataclass(frozen=True)
class Piece:
    """``length`` bytes of a request that go to unit ``index``, from its byte ``start`` on."""

    index: int
    start: int
    length: int


@dataclass
class Job:
    """One request: consecutive bytes of one file, scattered over consecutive pieces of units."""

    path: str
    offset: int
    length: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.length += piece.length

    def takes(self, path: str, offset: int, length: int, limit: int) -> bool:
        adjoins = path == self.path and offset == self.offset + self.length
        return adjoins and self.length + length <= limit and len(self.pieces) < MAX_PIECES


def requests(units: Iterable[Unit], *, chunk_bytes: int) -> list[Job]:
    """The requests for ``units``, in their order; small adjoining ones share one, large ones take several.

    The division depends on the units and ``chunk_bytes`` alone, never on the number of threads.
    """
    jobs: list[Job] = []
    for path, offset, piece in _pieces(units, chunk_bytes):
        if not jobs or not jobs[-1].takes(path, offset, piece.length, chunk_bytes):
            jobs.append(Job(path, offset))
        jobs[-1].add(piece)
    return jobs


def _pieces(units: Iterable[Unit], chunk_bytes: int) -> Iterator[tuple[str, int, Piece]]:
    for index, unit in enumerate(units):
        done = 0
        for offset, length in unit.ranges:
            for start in range(0, length, chunk_bytes):
                count = min(chunk_bytes, length - start)
                yield unit.path, offset + start, Piece(index, done, count)
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
