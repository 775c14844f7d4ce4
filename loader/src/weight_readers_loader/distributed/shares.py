# SPDX-License-Identifier: Apache-2.0
"""Who reads which bytes, and in which buckets they travel. Pure functions of metadata, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch

from weight_readers import TensorMeta, TensorSlice


class Segment(NamedTuple):
    """What one rank reads of one tensor: the bytes ``begin:end`` of it in memory; ``part`` is None for the whole.

    ``stored`` counts the bytes of the file behind it.
    """

    name: str
    part: TensorSlice | None
    begin: int
    end: int
    stored: int


class Piece(NamedTuple):
    """The bytes ``begin:end`` of a tensor, as part of a bucket."""

    name: str
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


PACKED = 4 << 20
"""Bytes of a piece up to which a copy, there and back, costs less than a message of its own."""


class Bucket(NamedTuple):
    """What travels once all ranks are ready, from the member ``owner`` to all."""

    owner: int
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def parcels(self) -> list[tuple[Piece, ...]]:
        """What goes in one message: small pieces together, and each large one straight to where it belongs."""
        small = tuple(piece for piece in self.pieces if piece.nbytes <= PACKED)
        return [*((piece,) for piece in self.pieces if piece.nbytes > PACKED), *([small] if small else [])]


def memory_bytes(meta: TensorMeta) -> int:
    """What the tensor takes in memory: numbers made of quantized blocks take more than those in the file."""
    dtype: torch.dtype = getattr(torch, meta.dtype)
    return math.prod(meta.stored_shape) * dtype.itemsize


def shares(tensors: Mapping[str, TensorMeta], ranks: int) -> list[list[Segment]]:
    """For each of ``ranks`` what it reads: stretches of the files one after the other, of equal bytes.

    Tensors are cut between rows of their first dimension that has any; a share is off by half a row at most, or by
    half a tensor that has one row. Tensors without bytes are in no share.
    """
    found: list[list[Segment]] = [[] for _ in range(ranks)]
    total = sum(meta.nbytes for meta in tensors.values())
    at = 0
    for meta in tensors.values():
        if meta.nbytes and memory_bytes(meta):
            for rank, segment in _cut(meta, at, total, ranks):
                found[rank].append(segment)
        at += meta.nbytes
    return found


def _cut(meta: TensorMeta, at: int, total: int, ranks: int) -> Iterator[tuple[int, Segment]]:
    """The segments of a tensor that begins at byte ``at`` of ``total``."""
    dim = next((dim for dim, size in enumerate(meta.stored_shape) if size > 1), None)
    rows = 1 if dim is None else meta.stored_shape[dim]
    unit = 1 if dim is None else _whole(meta.shape[dim], rows)
    if not unit:
        rows = 1
    start = 0
    for rank in range(ranks):
        stop = _row_at(total * (rank + 1) / ranks - at, meta.nbytes, rows) if rank + 1 < ranks else rows
        if stop > start:
            part = (
                None if (start, stop) == (0, rows) else TensorSlice(dim=dim or 0, start=start * unit, stop=stop * unit)
            )
            yield rank, _segment(meta, part, start, stop, rows)
        start = max(start, stop)


def _whole(logical: int, stored: int) -> int:
    """Elements of the file to a row in memory; 0 where that is no whole number."""
    return logical // stored if logical % stored == 0 else 0


def _row_at(byte: float, nbytes: int, rows: int) -> int:
    return min(rows, max(0, round(byte * rows / nbytes)))


def _segment(meta: TensorMeta, part: TensorSlice | None, start: int, stop: int, rows: int) -> Segment:
    row, stored = memory_bytes(meta) // rows, meta.nbytes * (stop - start) // rows
    return Segment(meta.name, part, start * row, stop * row, stored)


def schedule(parts: Sequence[Sequence[Segment]], bucket_bytes: int) -> list[list[Bucket]]:
    """The buckets in turns, in each of which every rank that has one left reads its own, all at the same time."""
    each = [list(_buckets(owner, segments, bucket_bytes)) for owner, segments in enumerate(parts)]
    return [[bucket for bucket in turn if bucket is not None] for turn in zip_longest(*each)]


def _buckets(owner: int, segments: Iterable[Segment], limit: int) -> Iterator[Bucket]:
    """Small tensors share a bucket; one that is larger than that has buckets of its own."""
    pieces: list[Piece] = []
    room = limit
    for segment in segments:
        for begin in range(segment.begin, segment.end, limit):
            piece = Piece(segment.name, begin, min(begin + limit, segment.end))
            if piece.nbytes > room and pieces:
                yield Bucket(owner, tuple(pieces))
                pieces, room = [], limit
            pieces.append(piece)
            room -= piece.nbytes
    if pieces:
        yield Bucket(owner, tuple(pieces))
