# SPDX-License-Identifier: Apache-2.0
"""The threads: they take requests in order, within a bound of bytes, and tell when a place is whole.

Requests are taken strictly in order, so that when one fails every earlier one has been started and will end. The
consumer goes on up to the first place that is not whole and gets the error of the *earliest* failed request: what
is handed out before an error, and which error that is, does not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from weight_readers import CheckpointError
from weight_readers_files.forked import Owner
from weight_readers_threaded.files import OpenFile, OpenFiles, Read, read_all
from weight_readers_threaded.places import Place
from weight_readers_threaded.requests import Job, Piece


class _StoppedError(Exception):
    """The request is not needed any more."""


class Engine:
    """Reads ``jobs`` into ``places``. Leaving the context stops all work and leaves no thread and no descriptor.

    limit: a request waits while it would bring more bytes than this in flight, unless nothing is.
    read: fills buffers from an open file, perhaps not all; ``open_file`` opens one.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        places: Sequence[Place],
        *,
        threads: int,
        limit: int,
        read: Read,
        open_file: Callable[[str], OpenFile],
    ) -> None:
        self._jobs = jobs
        self._places = places
        self._count = threads
        self._limit = limit
        self._read = read
        self._files = OpenFiles((job.path for job in jobs), open_file)
        self._left = _pieces_per_place(jobs, len(places))
        self._allocated = 0
        self._next = 0
        self._running: set[int] = set()
        self._in_flight = 0
        self._bytes_read = 0
        self._failed: tuple[int, BaseException] | None = None
        self._stopped = False
        self._owner = Owner()
        # Reentrant: the garbage collector may run `__exit__` in a thread that holds it.
        lock = threading.RLock()
        self._whole = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Engine:
        try:
            for number in range(self._count):
                thread = threading.Thread(target=self._run, name=f"weight-reader-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._owner.is_elsewhere:
            return
        with self._room:
            self._stopped = True
            self._room.notify_all()
        if threading.current_thread() in self._threads:
            return  # called by the garbage collector: this thread ends like the others, and need not wait for them
        for thread in self._threads:
            thread.join()
        # Only now: a thread that still reads writes into the memory of its places.
        self._files.close()
        for place in self._places:
            place.drop()
        self._failed = None

    @property
    def bytes_read(self) -> int:
        return self._bytes_read

    def wait(self, index: int, *, beyond: int | None = None) -> bool:
        """Wait until place ``index`` is whole. With ``beyond``, False as soon as more bytes than that are read.

        Ask in order. Raises the error of the earliest failed request where the place cannot become whole.
        """
        if not self._left[index]:
            return True
        self._owner.require()
        with self._whole:
            while self._left[index]:
                if self._failed is not None and not any(job < self._failed[0] for job in self._running):
                    raise self._failed[1]
                if beyond is not None and self._bytes_read > beyond:
                    return False
                self._whole.wait()
        return True

    def release(self, index: int) -> None:
        """The consumer has taken place ``index``: it is in flight no more."""
        # Once all requests are taken, none waits for room.
        if self._next < len(self._jobs) and not self._owner.is_elsewhere and (cost := self._places[index].cost):
            with self._room:
                self._in_flight -= cost
                self._room.notify()

    def _run(self) -> None:
        while (number := self._take()) is not None:
            try:
                self._perform(number)
            except BaseException as error:  # whatever it is, the consumer has to hear of it
                self._fail(number, error)
            else:
                self._end(number)

    def _take(self) -> int | None:
        """The next request, its memory allocated, once it is within the bound; None when all is over."""
        with self._room:
            while not self._stopped and self._failed is None and self._next < len(self._jobs):
                number = self._next
                new = self._places[self._allocated : self._jobs[number].last + 1]
                cost = sum(place.cost for place in new)
                if not cost or not self._in_flight or self._in_flight + cost <= self._limit:
                    self._next += 1
                    self._in_flight += cost
                    self._running.add(number)
                    self._room.notify()  # there may be room for one more
                    return number if self._allocate(number, new) else None
                self._room.wait()
            return None

    def _allocate(self, number: int, new: Sequence[Place]) -> bool:
        self._allocated += len(new)
        for place in new:
            try:
                place.allocate()
            except BaseException as error:  # out of memory, as a rule
                _note(error, place)
                self._fail(number, error)
                return False
        return True

    def _perform(self, number: int) -> None:
        job = self._jobs[number]
        first = self._places[job.pieces[0][0]]

        def proceed() -> None:
            if self._stopped or (self._failed is not None and self._failed[0] < number):
                raise _StoppedError

        try:
            file = self._files.get(job.path)
            for pieces in job.adjoining():
                buffers = [self._places[place].buffer(start, length) for place, start, _, length in pieces]
                name = partial(self._name, pieces)
                read_all(self._read, file, buffers, pieces[0][2], name=name, proceed=proceed)
            file.check(first.name)
        except BaseException as error:
            _note(error, first)
            raise
        finally:
            self._files.done(job.path)

    def _name(self, pieces: Sequence[Piece], buffer: int) -> str:
        return self._places[pieces[buffer][0]].name

    def _end(self, number: int) -> None:
        with self._whole:
            self._running.discard(number)
            for place, _, _, _ in self._jobs[number].pieces:
                self._left[place] -= 1
            self._bytes_read += self._jobs[number].length
            self._whole.notify()

    def _fail(self, number: int, error: BaseException) -> None:
        with self._whole:
            self._running.discard(number)
            if self._failed is None or number < self._failed[0]:
                self._failed = (number, error)
            self._whole.notify()
            self._room.notify_all()


def _pieces_per_place(jobs: Sequence[Job], places: int) -> list[int]:
    left = [0] * places
    for job in jobs:
        for place, _, _, _ in job.pieces:
            left[place] += 1
    return left


def _note(error: BaseException, place: Place) -> None:
    """Say which tensor it was, where the error does not, as far as this Python can."""
    if not isinstance(error, CheckpointError) and hasattr(error, "add_note"):
        error.add_note(f"While tensor {place.name!r} was read from {place.path}")
