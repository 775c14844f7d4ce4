# SPDX-License-Identifier: Apache-2.0
"""The digest of one file, made of tensors as they arrive and, for the bytes between them, of the file itself."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from weight_readers import FileMeta, TensorMeta

CHUNK_BYTES = 8 << 20
"""Hashed at a time; also how much is read at a time, and how far a hash goes on after it was stopped."""

_PYBUF_READ = 0x100

ReadAt = Callable[[int, int], bytes]
"""Bytes of the file from an offset to an end; fewer only where it ends."""


class Piece(NamedTuple):
    """Bytes ``begin:end`` of a file: those of the tensor ``name``, or, without a name, to be read from the file."""

    begin: int
    end: int
    name: str | None = None


def pieces_of(file: FileMeta, delivered: Iterable[TensorMeta]) -> list[Piece]:
    """The whole file in order. ``delivered`` are the tensors of it that arrive as they are stored.

    One that shares bytes with another (tied tensors of a torch file) is left to be read.
    """
    pieces: list[Piece] = []
    at = 0
    for meta in sorted(delivered, key=attrgetter("offset", "nbytes")):
        if meta.nbytes and meta.offset >= at:
            if meta.offset > at:
                pieces.append(Piece(at, meta.offset))
            at = meta.offset + meta.nbytes
            pieces.append(Piece(meta.offset, at, meta.name))
    return [*pieces, Piece(at, file.nbytes)] if at < file.nbytes else pieces


class FileHash:
    """Hashes the pieces of one file in order, each as soon as it is there. `give` and `advance` may run in different
    threads; `advance` runs in one at a time."""

    def __init__(self, pieces: Iterable[Piece], read_at: ReadAt, algorithm: str) -> None:
        self.bytes_read = 0
        self._left = iter(pieces)
        self._next = next(self._left, None)
        self._read_at = read_at
        self._arrived: dict[str, torch.Tensor | None] = {}
        self._digest = hashlib.new(algorithm)
        self._lock = threading.Lock()
        self._busy = False

    def begin(self) -> bool:
        """Whether there is something to hash before any tensor arrives: then `advance` has to be called."""
        with self._lock:
            self._busy = self._next is not None and self._next.name is None
            return self._busy

    def give(self, name: str, tensor: torch.Tensor | None) -> bool:
        """A tensor that arrived; None for one whose bytes are to be read. True where `advance` has to be called."""
        with self._lock:
            self._arrived[name] = tensor
            start, self._busy = not self._busy, True
            return start

    def advance(self, stopped: Callable[[], bool]) -> Iterator[int]:
        """Hash what is there; yields the bytes of each tensor that is done with."""
        while (piece := self._take(stopped)) is not None:
            tensor = self._arrived.pop(piece.name) if piece.name is not None else None
            if tensor is not None:
                self._hash(memory_of(tensor), stopped)
                yield piece.end - piece.begin
            else:
                self._read(piece, stopped)

    def hexdigest(self) -> str | None:
        """The digest, or None as long as not all of the file was hashed."""
        return self._digest.hexdigest() if self._next is None else None

    def _take(self, stopped: Callable[[], bool]) -> Piece | None:
        with self._lock:
            piece = self._next
            there = piece is not None and (piece.name is None or piece.name in self._arrived)
            if piece is None or not there or stopped():
                self._busy = False
                return None
            self._next = next(self._left, None)
            return piece

    def _hash(self, data: memoryview, stopped: Callable[[], bool]) -> None:
        for begin in range(0, len(data), CHUNK_BYTES):
            if not stopped():
                self._digest.update(data[begin : begin + CHUNK_BYTES])

    def _read(self, piece: Piece, stopped: Callable[[], bool]) -> None:
        for begin in range(piece.begin, piece.end, CHUNK_BYTES):
            if not stopped():
                data = self._read_at(begin, min(begin + CHUNK_BYTES, piece.end))
                self.bytes_read += len(data)
                self._digest.update(data)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory, which the caller keeps alive meanwhile. Nothing is copied."""
    view: memoryview = _from_memory()(tensor.data_ptr(), tensor.nbytes, _PYBUF_READ)
    return view


@cache
def _from_memory() -> Any:
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    return prototype(("PyMemoryView_FromMemory", ctypes.pythonapi))
