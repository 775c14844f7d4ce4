# SPDX-License-Identifier: Apache-2.0
"""Read ahead of the consumer: background threads pull the planned ranges into the page cache."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from weight_readers import CheckpointError
from weight_readers_files import FilePlan, State, ending
from weight_readers_files.bell import Bell
from weight_readers_files.crew import PATIENCE_SECONDS, Crew
from weight_readers_files.forked import Owner
from weight_readers_files.source import Source

CHUNK_BYTES = 4 << 20
WINDOW_BYTES = 256 << 20
"""How far the threads run ahead of the consumer: what they read must still be cached when its turn comes."""


class Chunk(NamedTuple):
    """At most `CHUNK_BYTES` of the file with this number; chunks sort as they are consumed."""

    file: int
    offset: int
    length: int
    path: str
    state: State | None

    def read(self, scratch: memoryview) -> None:
        try:
            source = Source(self.path, self.state, exact=True)
        except CheckpointError:
            # Gone, or another file by now. The consumer may hold the old one open; if not, it meets the same.
            return
        with source:
            source.will_need([(self.offset, self.length)])
            source.read_into(scratch[: self.length], self.offset)


class ReadAhead:
    """Reads what the plans want in order, at most ``window`` bytes ahead of what `need` asked for.

    `need` waits until its bytes were read once without an error, and raises the first error of any thread, which
    stops them all: touching a page that cannot be read would end the process with SIGBUS instead. `close` stops
    the threads within one chunk.
    """

    def __init__(self, plans: Sequence[FilePlan], *, threads: int, window: int = WINDOW_BYTES) -> None:
        self._chunks = list(_chunks(plans))
        self._before = [0, *accumulate(chunk.length for chunk in self._chunks)]
        self._window = window
        self._next = 0
        self._needed = 0
        self._running: set[int] = set()
        self._stopped = False
        self._owner = Owner()
        self._error: BaseException | None = None
        self._awaited = 0
        self._lock = threading.Lock()
        count = min(threads, len(self._chunks))
        self._read = Bell()
        self._room = Bell(count)
        self._crew = Crew("read-ahead")
        ending.begun(self, self.close)
        try:
            self._crew.start(self._run, count)
        except BaseException:
            self.close()
            raise

    def need(self, file: int, end: int) -> None:
        """Wait until everything up to offset ``end`` of that file was read, and let the threads run on from there."""
        self._owner.require()
        needed = bisect_left(self._chunks, (file, end))
        while not self._have(needed):
            self._read.wait()

    def _have(self, needed: int) -> bool:
        """Whether so many chunks were read. If not, the bell will ring when they are, or cannot be."""
        with self._lock:
            if needed > self._needed:
                self._needed = needed
                self._room.ring()
            if self._error is not None:
                raise self._error
            if self._finished() >= needed:
                return True
            if self._stopped:
                raise RuntimeError("reading was ended, as the program ends")
            self._awaited = needed
            self._read.expect()
            return False

    def close(self) -> None:
        # First of all, and without the lock: the garbage collector calls this in any thread, whatever that holds.
        self._stopped = True
        ending.ended(self)
        if self._owner.is_elsewhere:
            return
        self._room.ring_all()
        self._read.ring_all()
        self._crew.join(PATIENCE_SECONDS)

    def _finished(self) -> int:
        """How many chunks, from the first on, are read."""
        return min(self._running, default=self._next)

    def _run(self) -> None:
        try:
            scratch = memoryview(bytearray(CHUNK_BYTES))
            while (number := self._take()) is not None:
                self._chunks[number].read(scratch)
                self._finish(number)
        except BaseException as error:
            # Whatever it is, the consumer waits for this thread and has to hear of it.
            with self._lock:
                self._error = self._error or error
                self._stopped = True
                self._room.ring_all()
                self._read.ring()

    def _take(self) -> int | None:
        """The next chunk, once it is within the window; None when there is none or all is over."""
        while True:
            with self._lock:
                if self._stopped or self._next == len(self._chunks):
                    return None
                if self._in_window():
                    self._running.add(self._next)
                    self._next += 1
                    self._room.ring()  # there may be room for one more
                    return self._next - 1
                self._room.expect()
            self._room.wait()

    def _in_window(self) -> bool:
        return self._next < self._needed or self._before[self._next + 1] <= self._before[self._needed] + self._window

    def _finish(self, number: int) -> None:
        with self._lock:
            self._running.remove(number)
            if self._finished() >= self._awaited:
                self._read.ring()


def _chunks(plans: Sequence[FilePlan]) -> Iterator[Chunk]:
    for number, plan in enumerate(plans):
        for offset, length in plan.pages():
            for begin in range(offset, offset + length, CHUNK_BYTES):
                yield Chunk(number, begin, min(CHUNK_BYTES, offset + length - begin), plan.path, plan.state)
