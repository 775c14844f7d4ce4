# SPDX-License-Identifier: Apache-2.0
"""The threads: they take requests in order, within a bound of bytes, and tell when a unit is whole.

Requests are taken strictly in order, so that when one fails every earlier one has been started and will end. The
consumer goes on up to the first unit that is not whole and gets the error of the *earliest* failed request: what
is handed out before an error, and which error that is, does not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from weight_readers_threaded.files import Name, OpenFile, OpenFiles
from weight_readers_threaded.requests import Job, Unit


class Place(Protocol):
    """The memory of one unit.

    ``cost`` are the bytes that count as in flight from `allocate`, which is called once and in order, until the
    consumer has taken the unit.
    """

    cost: int

    def allocate(self) -> None: ...

    def buffer(self) -> memoryview: ...


Read = Callable[[OpenFile, Sequence[memoryview], int, Name], None]


class Engine:
    """Reads ``jobs`` into ``places``, one for each of ``units``. Leaving the context stops all work.

    limit: a request waits while more bytes than this are in flight, unless nothing is; None for no bound.
    read: fills buffers from an open file; ``open_file`` opens one.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        units: Sequence[Unit],
        places: Sequence[Place],
        *,
        threads: int,
        limit: int | None,
        read: Read,
        open_file: Callable[[str], OpenFile],
    ) -> None:
        self._jobs = jobs
        self._units = units
        self._places = places
        self._limit = limit
        self._read = read
        self._files = OpenFiles(Counter(job.path for job in jobs), open_file)
        self._left = Counter(piece.index for job in jobs for piece in job.pieces)
        self._allocated = 0
        self._next = 0
        self._running: set[int] = set()
        self._in_flight = 0
        self._bytes_read = 0
        self._failed: tuple[int, BaseException] | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"weight-reader-{n}", daemon=True) for n in range(threads)
        ]

    def __enter__(self) -> Engine:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._files.close()

    @property
    def bytes_read(self) -> int:
        return self._bytes_read

    @property
    def begun(self) -> int:
        """Units below this index may have been written to."""
        return self._allocated

    def wait(self, index: int, *, beyond: int | None = None) -> bool:
        """Wait until unit ``index`` is whole. With ``beyond``, False as soon as more bytes than that are read.

        Ask in order. Raises the error of the earliest failed request where the unit cannot become whole.
        """
        with self._changed:
            while self._left[index]:
                if self._failed is not None and not any(job < self._failed[0] for job in self._running):
                    raise self._failed[1]
                if beyond is not None and self._bytes_read > beyond:
                    return False
                self._changed.wait()
            return True

    def release(self, index: int) -> None:
        """The consumer has taken unit ``index``: it is in flight no more."""
        with self._changed:
            self._in_flight -= self._places[index].cost
            self._changed.notify_all()

    def _run(self) -> None:
        while (number := self._take()) is not None:
            try:
                self._perform(self._jobs[number])
            except BaseException as error:  # whatever it is, the consumer has to hear of it
                self._end(number, error)
            else:
                self._end(number, None)

    def _take(self) -> int | None:
        """The next request, its memory allocated, once it is within the bound; None when all is over."""
        with self._changed:
            while not self._stopped and self._failed is None and self._next < len(self._jobs):
                number = self._next
                last = self._jobs[number].pieces[-1].index + 1
                cost = sum(place.cost for place in self._places[self._allocated : last])
                if not cost or not self._in_flight or self._limit is None or self._in_flight + cost <= self._limit:
                    self._in_flight += cost
                    self._next += 1
                    return number if self._allocated_up_to(number, last) else None
                self._changed.wait()
            return None

    def _allocated_up_to(self, number: int, last: int) -> bool:
        try:
            for place in self._places[self._allocated : last]:
                place.allocate()
        except Exception as error:  # out of memory; whatever it is, the consumer has to hear of it
            self._failed = (number, error)
            self._changed.notify_all()
            return False
        self._allocated = max(self._allocated, last)
        self._running.add(number)
        return True

    def _perform(self, job: Job) -> None:
        def name(buffer: int) -> str:
            return self._units[job.pieces[buffer].index].name

        try:
            file = self._files.get(job.path)
            buffers = [self._places[p.index].buffer()[p.start : p.start + p.length] for p in job.pieces]
            self._read(file, buffers, job.offset, name)
            file.check(name(0))
        finally:
            self._files.done(job.path)

    def _end(self, number: int, error: BaseException | None) -> None:
        with self._changed:
            self._running.discard(number)
            if error is not None:
                if self._failed is None or number < self._failed[0]:
                    self._failed = (number, error)
            else:
                for piece in self._jobs[number].pieces:
                    self._left[piece.index] -= 1
                self._bytes_read += self._jobs[number].length
            self._changed.notify_all()
