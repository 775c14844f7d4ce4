# SPDX-License-Identifier: Apache-2.0
"""The limit that readers are measured against: parallel ``preadv`` of the same bytes, with nothing made of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from weight_readers import TensorMeta
from weight_readers_loader.raw import as_bytes

THREADS = 4
CHUNK_BYTES = 8 << 20
_MAX_BUFFERS = 1024


def bare_reads(metas: Sequence[TensorMeta], targets: Mapping[str, torch.Tensor] | None) -> None:
    """Every byte of every tensor by a few threads: into the targets, or into a buffer that each thread reuses."""
    descriptors = {path: os.open(path, os.O_RDONLY) for path in {meta.file for meta in metas}}
    todo = iter(_requests(metas))
    errors: list[BaseException] = []

    def work() -> None:
        scratch = memoryview(bytearray(CHUNK_BYTES if targets is None else 0))
        try:
            for request in todo:
                meta, start, _ = request[0]
                buffers = [scratch[: sum(piece.length for piece in request)]]
                if targets is not None:
                    buffers = [_memory_of(targets[piece.meta.name], piece) for piece in request]
                _read(descriptors[meta.file], buffers, meta.offset + start)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    if errors:
        raise errors[0]


class _Piece(NamedTuple):
    """``length`` bytes of a tensor from its byte ``start`` on."""

    meta: TensorMeta
    start: int
    length: int

    def adjoins(self, other: _Piece) -> bool:
        end = other.meta.offset + other.start + other.length
        return (self.meta.file, self.meta.offset + self.start) == (other.meta.file, end)


def _requests(metas: Sequence[TensorMeta]) -> list[list[_Piece]]:
    """Pieces that lie side by side share a request, up to `CHUNK_BYTES` and the buffers that one call takes."""
    requests: list[list[_Piece]] = []
    left = 0
    for meta in sorted(metas, key=lambda meta: (meta.file, meta.offset)):
        for start in range(0, meta.nbytes, CHUNK_BYTES):
            piece = _Piece(meta, start, min(CHUNK_BYTES, meta.nbytes - start))
            if piece.length > left or not piece.adjoins(requests[-1][-1]) or len(requests[-1]) == _MAX_BUFFERS:
                requests.append([])
                left = CHUNK_BYTES
            requests[-1].append(piece)
            left -= piece.length
    return requests


def _memory_of(target: torch.Tensor, piece: _Piece) -> memoryview:
    raw = memoryview(as_bytes(target).numpy())  # type: ignore[arg-type]
    return raw[piece.start : piece.start + piece.length]


def _read(descriptor: int, buffers: list[memoryview], offset: int) -> None:
    while buffers:
        count = os.preadv(descriptor, buffers, offset)
        if count == 0:
            raise EOFError(f"the file ends at byte {offset}, in the middle of a tensor")
        offset += count
        while buffers and count >= len(buffers[0]):
            count -= len(buffers.pop(0))
        if count:
            buffers[0] = buffers[0][count:]
