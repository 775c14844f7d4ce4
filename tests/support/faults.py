# SPDX-License-Identifier: Apache-2.0
"""Storage that misbehaves on demand: each is a ``read`` as the threaded reader takes it, over real files."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

SECONDS = 60.0
"""Between "at once" and "never": what takes longer hangs."""


class Open(Protocol):
    @property
    def fd(self) -> int: ...

    @property
    def path(self) -> str: ...


Buffers = Sequence[memoryview]
Read = Callable[[Open, Buffers, int], int]


def whole(file: Open, buffers: Buffers, offset: int) -> int:
    return os.preadv(file.fd, buffers, offset)


def short(largest: int = 5) -> Read:
    """From one byte to ``largest`` bytes at a time, within the first buffer."""
    lengths = random.Random(0)
    return lambda file, buffers, offset: os.preadv(file.fd, [buffers[0][: lengths.randint(1, largest)]], offset)


def failing(error: BaseException, *, path: str | Path | None = None, begin: int = 0, end: int | None = None) -> Read:
    """Raises ``error`` for reads that touch the bytes ``begin:end`` of the file; others go well."""

    def read(file: Open, buffers: Buffers, offset: int) -> int:
        reach = offset + sum(map(len, buffers))
        if path in (None, file.path, Path(file.path)) and reach > begin and (end is None or offset < end):
            raise error
        return whole(file, buffers, offset)

    return read


class Recorded:
    """Reads as they were asked for: ``(file name, offset, bytes)``, and the threads that made them."""

    def __init__(self, read: Read = whole) -> None:
        self.reads: list[tuple[str, int, int]] = []
        self.threads: set[threading.Thread] = set()
        self._read = read

    def __call__(self, file: Open, buffers: Buffers, offset: int) -> int:
        self.threads.add(threading.current_thread())
        self.reads.append((os.path.basename(file.path), offset, sum(map(len, buffers))))
        return self._read(file, buffers, offset)

    def bytes_asked(self) -> int:
        return sum(length for _, _, length in self.reads)


class Gate:
    """Reads that wait until they are let through; ``arrived`` counts those that came to it."""

    def __init__(self, read: Read = whole) -> None:
        self._read = read
        self._open = threading.Event()
        self._changed = threading.Condition()
        self.arrived = 0

    def __call__(self, file: Open, buffers: Buffers, offset: int) -> int:
        with self._changed:
            self.arrived += 1
            self._changed.notify_all()
        assert self._open.wait(SECONDS), "nobody opened the gate"
        return self._read(file, buffers, offset)

    def await_arrivals(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived >= count, SECONDS), f"{self.arrived} of {count} arrived"

    def open(self) -> None:
        self._open.set()


@contextmanager
def at_once() -> Iterator[None]:
    """Fail where the block takes longer than any but a hanging one would."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < SECONDS
