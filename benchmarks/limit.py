# SPDX-License-Identifier: Apache-2.0
"""The limit: what parallel ``preadv`` of the same ranges into the same memory takes when nothing else is done.

The ranges, the open files and (where the memory exists) the buffers are made before the clock starts. Adjoining
ranges share a call, up to the chunk size of our reader and the 1024 buffers that one call takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.delivered import as_bytes
from benchmarks.entries import Entry
from benchmarks.settings import CHUNK_BYTES, THREADS

_MAX_BUFFERS = 1024


@dataclass
class Call:
    """One ``preadv``: consecutive bytes of one open file, scattered over ``buffers``."""

    descriptor: int
    offset: int
    length: int = 0
    buffers: list[memoryview] = field(default_factory=list)

    def read(self) -> None:
        left, buffers, offset = self.length, self.buffers, self.offset
        while True:
            count = os.preadv(self.descriptor, buffers, offset)
            if count == left:
                return
            if count == 0:
                raise EOFError(f"the file ends at {offset}")
            left, offset = left - count, offset + count
            buffers = _rest(buffers, count)


def _rest(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """The buffers after the first ``count`` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


def calls(wanted: Sequence[Entry], targets: Mapping[str, torch.Tensor], descriptors: Mapping[str, int]) -> list[Call]:
    made: list[Call] = []
    end_of: tuple[str, int] | None = None
    for entry in wanted:
        for offset, buffer in _chunks(entry, targets[entry.name]):
            joins = end_of == (entry.file, offset) and made[-1].length + len(buffer) <= CHUNK_BYTES
            if not joins or len(made[-1].buffers) == _MAX_BUFFERS:
                made.append(Call(descriptors[entry.file], offset))
            made[-1].buffers.append(buffer)
            made[-1].length += len(buffer)
            end_of = (entry.file, offset + len(buffer))
    return made


def _chunks(entry: Entry, target: torch.Tensor) -> Iterator[tuple[int, memoryview]]:
    memory = memoryview(as_bytes(target).numpy())  # type: ignore[arg-type]
    for start in range(0, entry.nbytes, CHUNK_BYTES):
        yield entry.offset + start, memory[start : start + CHUNK_BYTES]


def read_all(made: Sequence[Call], threads: int = THREADS) -> None:
    """Make all calls, each by whichever thread is free."""
    todo = iter(made)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for call in todo:
                call.read()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
