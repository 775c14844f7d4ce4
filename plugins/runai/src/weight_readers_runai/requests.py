# SPDX-License-Identifier: Apache-2.0
"""From what is wanted of each file to the ranges that are asked for, and where in which tensor their bytes go.

Every range lies within one block of 8 MiB of its file, counted from the file's beginning: there the native library
cuts longer ones itself, so a range of ours is one read of a file or one request to an object store. Ranges of small
tensors are joined, since each range costs a response, and over a network a round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from weight_readers_files import FilePlan, Wanted

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 8 << 20
SMALL_BYTES = 256 << 10
"""Longer ranges are read by themselves, straight into their tensor."""
MANY_RANGES = 64
"""A slice of so many ranges is read with the gaps between them, if those are short."""
SHORT_GAP = 64 << 10
MAX_RANGES = 64
"""Of one request, so that its bytes are soon enough all there."""


class Piece(NamedTuple):
    """``length`` bytes at ``offset`` of the file are those from ``begin`` on of load number ``load``."""

    load: int
    begin: int
    offset: int
    length: int


class Block(NamedTuple):
    """One range of a file and the pieces in it, by offset."""

    path: str
    offset: int
    length: int
    pieces: Sequence[Piece]

    @property
    def is_direct(self) -> bool:
        """Whether all of it goes to one place, so that it is read there."""
        return len(self.pieces) == 1


class Load(NamedTuple):
    """One tensor, or a part of one, with its file's plan; ``target`` is memory of the caller's that it is read to.

    ``target`` is ``uint8`` of exactly the bytes wanted; None for memory that is made when it is asked for.
    """

    plan: FilePlan
    wanted: Wanted
    target: torch.Tensor | None = None


def loads_of(plans: Iterable[FilePlan]) -> list[Load]:
    return [Load(plan, wanted) for plan in plans for wanted in plan.wanted]


def requests(loads: Sequence[Load], *, gap: int = 0) -> list[list[Block]]:
    """The blocks in file order, in groups of one file and at most `BLOCK_BYTES` that are submitted together.

    Unwanted bytes are read only where they lie between pieces, at most ``gap`` in a row or `SHORT_GAP` within a
    slice of `MANY_RANGES`.
    """
    grouped: list[list[Block]] = []
    total = 0
    for block in _blocks(loads, gap):
        last = grouped[-1] if grouped else None
        joins = last is not None and last[0].path == block.path and len(last) < MAX_RANGES
        if last is not None and joins and total + block.length <= BLOCK_BYTES:
            last.append(block)
            total += block.length
        else:
            grouped.append([block])
            total = block.length
    return grouped


def _blocks(loads: Sequence[Load], gap: int) -> Iterator[Block]:
    joined: list[Piece] = []
    for piece in _pieces(loads):
        if joined and not _joins(loads, joined, piece, gap):
            yield _block(loads, joined)
            joined = []
        joined.append(piece)
    if joined:
        yield _block(loads, joined)


def _joins(loads: Sequence[Load], joined: Sequence[Piece], piece: Piece, gap: int) -> bool:
    first, last = joined[0], joined[-1]
    if max(last.length, piece.length) > SMALL_BYTES or loads[first.load].plan is not loads[piece.load].plan:
        return False
    if piece.offset // BLOCK_BYTES != first.offset // BLOCK_BYTES:
        return False
    many = last.load == piece.load and len(loads[piece.load].wanted.ranges) > MANY_RANGES
    return 0 <= piece.offset - (last.offset + last.length) <= (max(gap, SHORT_GAP) if many else gap)


def _block(loads: Sequence[Load], pieces: Sequence[Piece]) -> Block:
    first, last = pieces[0], pieces[-1]
    return Block(loads[first.load].plan.path, first.offset, last.offset + last.length - first.offset, tuple(pieces))


def _pieces(loads: Sequence[Load]) -> Iterator[Piece]:
    """Every range wanted, cut where the file's blocks end."""
    for number, load in enumerate(loads):
        begin = 0
        for offset, length in load.wanted.ranges:
            end = offset + length
            while offset < end:
                count = min(end, (offset // BLOCK_BYTES + 1) * BLOCK_BYTES) - offset
                yield Piece(number, begin, offset, count)
                begin, offset = begin + count, offset + count
