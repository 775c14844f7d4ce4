# SPDX-License-Identifier: Apache-2.0
"""Each rank reads its share, and all of them get everything: bytes travel as uint8, so that any dtype does.

gloo and NCCL know fewer dtypes than torch (pytorch/pytorch#103585): of float8, uint16 and others they refuse all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from weight_readers import MissingTensorError, ReadStats, TensorMeta
from weight_readers_loader.distributed.operation import Operation
from weight_readers_loader.distributed.shares import Bucket, Piece, Segment, memory_bytes, schedule
from weight_readers_loader.raw import as_bytes
from weight_readers_loader.streams import Stream, Update, Weights


@dataclass
class Arriving:
    """A tensor whose bytes come in pieces, or that this rank has read itself."""

    meta: TensorMeta
    device: str
    missing: int
    flat: torch.Tensor | None = None
    read: torch.Tensor | None = None

    def bytes_of(self, piece: Piece) -> torch.Tensor:
        """Where the piece goes."""
        if self.flat is None:
            self.flat = torch.empty(memory_bytes(self.meta), dtype=torch.uint8, device=self.device)
        return self.flat[piece.begin : piece.end]

    def take(self) -> torch.Tensor:
        if self.read is not None:
            return self.read
        dtype: torch.dtype = getattr(torch, self.meta.dtype)
        flat = self.flat if self.flat is not None else torch.empty(0, dtype=torch.uint8, device=self.device)
        return flat.view(dtype).view(self.meta.stored_shape)


class Source:
    """What this rank reads, found by name: in the order in which it is sent, unless the reader has another."""

    def __init__(self, weights: Weights, segments: Sequence[Segment]) -> None:
        self._weights = iter(weights)
        self._segments = {segment.name: segment for segment in segments}
        self._waiting: dict[str, torch.Tensor] = {}
        self._current: tuple[str, torch.Tensor, torch.Tensor] | None = None

    def tensor(self, name: str) -> torch.Tensor:
        self._find(name)
        assert self._current is not None  # noqa: S101 - for mypy: `_find` sets it
        return self._current[1]

    def has_whole(self, name: str) -> bool:
        return self._segments[name].part is None

    def bytes_of(self, piece: Piece) -> torch.Tensor:
        self._find(piece.name)
        assert self._current is not None  # noqa: S101 - for mypy: `_find` sets it
        before = self._segments[piece.name].begin
        return self._current[2][piece.begin - before : piece.end - before]

    def _find(self, name: str) -> None:
        if self._current is not None and self._current[0] == name:
            return
        while name not in self._waiting:
            other, tensor = next(self._weights)
            self._waiting[other] = tensor
        tensor = self._waiting.pop(name)
        self._current = (name, tensor, as_bytes(tensor))


@dataclass(kw_only=True)
class Exchange:
    """One load of ``tensors``: ``parts`` are the segments of each member, ``source`` reads those of this one.

    ``carrier`` is the device on which bytes travel, and ``device`` where tensors are to be.
    """

    operation: Operation
    tensors: Mapping[str, TensorMeta]
    parts: Sequence[Sequence[Segment]]
    own: int
    source: Callable[[Sequence[Segment]], Weights]
    bucket_bytes: int
    carrier: str
    device: str
    update: Update = field(default=lambda stats: None)

    def tensors_of_all(self) -> Stream:
        """Yield every tensor on every rank, in the same order, as soon as its last byte has come."""
        arriving = {name: Arriving(meta, self.carrier, memory_bytes(meta)) for name, meta in self.tensors.items()}
        source = Source(self._read(), self.parts[self.own])
        stats = ReadStats(bytes_wanted=sum(map(memory_bytes, self.tensors.values())))
        for name in [name for name, each in arriving.items() if not each.missing]:
            yield name, arriving.pop(name).take().to(self.device)
        for turn in schedule(self.parts, self.bucket_bytes):
            own = [self._ready(bucket, source, arriving) for bucket in turn if bucket.owner == self.own]
            for bucket in turn:
                self._move(bucket, own.pop() if bucket.owner == self.own else None, arriving)
                for name in self._complete(bucket, arriving):
                    stats = _one_more(stats, self.tensors[name])
                    self.update(stats)
                    yield name, arriving.pop(name).take().to(self.device)

    def _read(self) -> Iterator[tuple[str, torch.Tensor]]:
        segments = self.parts[self.own]
        if not segments:
            return
        for name, tensor in self.source(segments):
            self.operation.working_on(self.tensors[name].file)
            self.operation.progress()
            yield name, tensor
        raise MissingTensorError("the reader ended early", path=self.tensors[segments[-1].name].file)

    def _move(self, bucket: Bucket, own: Sequence[torch.Tensor] | None, arriving: Mapping[str, Arriving]) -> None:
        """``own`` are the parcels, where this rank sends them."""
        data = [self._room(parcel, arriving) for parcel in bucket.parcels] if own is None else own
        self.operation.broadcast(data, bucket.owner)
        if own is None:
            for parcel, came in zip(bucket.parcels, data, strict=True):
                if len(parcel) > 1:
                    _unpack(came, parcel, arriving)

    def _room(self, parcel: Sequence[Piece], arriving: Mapping[str, Arriving]) -> torch.Tensor:
        if len(parcel) == 1:
            return arriving[parcel[0].name].bytes_of(parcel[0])
        return torch.empty(sum(piece.nbytes for piece in parcel), dtype=torch.uint8, device=self.carrier)

    def _ready(self, bucket: Bucket, source: Source, arriving: Mapping[str, Arriving]) -> list[torch.Tensor]:
        """This rank's own parcels, read before the others are told; it keeps the tensor itself where it read all."""
        found = {}
        for piece in bucket.pieces:
            raw, each = source.bytes_of(piece), arriving[piece.name]
            if source.has_whole(piece.name):
                each.read = source.tensor(piece.name)
            else:
                each.bytes_of(piece).copy_(raw)
            found[piece] = raw
        return [_packed([found[piece] for piece in parcel]).to(self.carrier) for parcel in bucket.parcels]

    def _complete(self, bucket: Bucket, arriving: Mapping[str, Arriving]) -> Iterator[str]:
        for piece in bucket.pieces:
            arriving[piece.name].missing -= piece.nbytes
            if not arriving[piece.name].missing:
                yield piece.name


def _packed(raws: Sequence[torch.Tensor]) -> torch.Tensor:
    return raws[0] if len(raws) == 1 else torch.cat(list(raws))


def _unpack(data: torch.Tensor, parcel: Sequence[Piece], arriving: Mapping[str, Arriving]) -> None:
    at = 0
    for piece in parcel:
        arriving[piece.name].bytes_of(piece).copy_(data[at : at + piece.nbytes])
        at += piece.nbytes


def _one_more(stats: ReadStats, meta: TensorMeta) -> ReadStats:
    return ReadStats(
        tensors=stats.tensors + 1,
        bytes_wanted=stats.bytes_wanted,
        bytes_read=stats.bytes_read + memory_bytes(meta),
    )
