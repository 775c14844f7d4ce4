# SPDX-License-Identifier: Apache-2.0
"""The threads: they take requests in order, within a bound of bytes, and tell when a place is whole.

Requests are taken strictly in order, so that when one fails every earlier one has been started and will end. The
consumer goes on up to the first place that is not whole and gets the error of the *earliest* failed request: what
is handed out before an error, and which error that is, does not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, tee
from typing import Generic, NamedTuple, Protocol, TypeVar

from weight_readers import CheckpointError
from weight_readers_files import ending
from weight_readers_files.bell import Bell
from weight_readers_files.crew import Crew
from weight_readers_files.forked import Owner
from weight_readers_threaded.files import OpenFile, OpenFiles, Read, read_all, read_each
from weight_readers_threaded.places import Place
from weight_readers_threaded.requests import ALL, Piece, Request, Scattered, requests


class _StoppedError(Exception):
    """The request is not needed any more."""


class HasPlaces(Protocol):
    @property
    def places(self) -> Sequence[Place]: ...


L = TypeVar("L", bound=HasPlaces)


class _Taken(NamedTuple):
    """A request that a thread performs, and its number."""

    number: int
    job: Request


class Engine(Generic[L]):
    """Reads into the places of ``loads``. Leaving the context stops all work; no thread and no descriptor outlives it.

    Loads, places and requests exist while they are read ahead of the consumer or not yet taken by it, and not for all
    tensors at once. Places are numbered in the order of their loads.

    chunk_bytes, ranges: see `requests`.
    threads: at most so many, and never more than requests.
    limit: a request waits while it would bring more bytes than this in flight, unless nothing is.
    read: fills buffers from an open file, perhaps not all; ``open_file`` opens one.
    patience: how many seconds leaving the context waits for reads under way, which end by themselves then; without end
        where it is None, as it has to be where they go to memory of the caller's.
    """

    def __init__(
        self,
        loads: Iterable[L],
        *,
        chunk_bytes: int,
        ranges: int,
        threads: int,
        limit: int,
        read: Read,
        open_file: Callable[[str], OpenFile],
        patience: float | None = None,
    ) -> None:
        self._loads, ahead = tee(loads)
        self._places: dict[int, Place] = {}
        jobs = requests(_numbered(ahead, self._places), chunk_bytes=chunk_bytes, joined_bytes=limit, ranges=ranges)
        first = list(islice(jobs, threads))
        self._jobs = chain(first, jobs)
        self._count = len(first)
        self._limit = limit
        self._patience = patience
        self._read = read
        self._files = OpenFiles(open_file)
        # Of places that requests were taken for: how many pieces are still to be read. Before the place with the number
        # ``_requested`` all have their requests.
        self._left: dict[int, int] = {}
        self._requested = 0 if first else ALL
        self._awaited = (0, 1)
        self._upcoming: Request | None = None
        self._allocated = 0
        self._next = 0
        self._running: set[int] = set()
        self._in_flight = 0
        self._bytes_read = 0
        self._failed: tuple[int, BaseException] | None = None
        self._unmade: BaseException | None = None
        self._stopped = False
        self._owner = Owner()
        # Reentrant: what fails while a request is taken fails under it.
        self._lock = threading.RLock()
        self._whole = Bell()
        self._room = Bell(self._count)
        self._crew = Crew("weight-reader")

    def __enter__(self) -> Engine[L]:
        ending.begun(self, self.__exit__)
        try:
            self._crew.start(self._run, self._count)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        # First of all, and without the lock: the garbage collector calls this in any thread, whatever that holds.
        self._stopped = True
        ending.ended(self)
        if self._owner.is_elsewhere:
            return
        self._room.ring_all()
        self._whole.ring_all()
        if not self._crew.join(self._patience):
            return  # what the threads hold goes with them
        # Only now: a thread that still reads writes into the memory of its places.
        self._files.close()
        for place in self._places.values():
            place.drop()
        self._failed = None

    @property
    def bytes_read(self) -> int:
        return self._bytes_read

    @property
    def threads(self) -> int:
        """How many threads there are, or will be."""
        return self._count

    def loads(self) -> Iterator[L]:
        """The loads, in order, for the consumer: once."""
        while (load := self._pull()) is not None:
            yield load

    def _pull(self) -> L | None:
        if self._requested < ALL:
            # In a fork the lock may be held by a thread that is not there.
            self._owner.require()
            with self._lock:
                load = next(self._loads, None)
        else:  # no thread asks for loads any more
            load = next(self._loads, None)
        # What a read failed with is raised where its place is awaited: earlier ones may still become whole.
        if load is None and self._unmade is not None:
            raise self._unmade
        return load

    def wait(self, index: int, *, count: int = 1, seconds: float | None = None) -> bool:
        """Wait until ``count`` places from ``index`` on are whole; False if they are not after so many seconds.

        Raises the error of the earliest failed request where they cannot become whole.
        """
        if self._are_whole(index, count):
            return True
        self._owner.require()
        while not self._need(index, count):
            if not self._whole.wait(seconds):
                return self._are_whole(index, count)
        return True

    def _need(self, index: int, count: int) -> bool:
        """Whether the places are whole. If not, the bell will ring when they are, or cannot become so."""
        with self._lock:
            if self._are_whole(index, count):
                return True
            if self._failed is not None and not any(job < self._failed[0] for job in self._running):
                raise self._failed[1]
            if self._stopped:
                raise RuntimeError("reading was ended, as the program ends")
            self._awaited = (index, count)
            self._whole.expect()
            return False

    def _are_whole(self, index: int, count: int) -> bool:
        return index + count <= self._requested and self._left.keys().isdisjoint(range(index, index + count))

    def release(self, index: int, *, count: int = 1) -> None:
        """The consumer has taken ``count`` places from ``index`` on: they are in flight no more."""
        cost = sum([self._places.pop(number).cost for number in range(index, index + count)])
        # Once all requests are taken, none waits for room.
        if cost and self._requested < ALL and not self._owner.is_elsewhere:
            with self._lock:
                self._in_flight -= cost
                self._room.ring()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            try:
                self._perform(*taken)
            except BaseException as error:  # whatever it is, the consumer has to hear of it
                self._fail(taken.number, error)
            else:
                self._end(*taken)

    def _take(self) -> _Taken | None:
        """The next request, its memory allocated, once it is within the bound; None when all is over."""
        while True:
            with self._lock:
                if self._stopped or self._failed is not None or (job := self._peek()) is None:
                    return None
                # What the consumer has taken already is empty: it did not wait for a request.
                numbers = range(self._allocated, job.last + 1)
                new = [self._places[number] for number in numbers if number in self._places]
                cost = sum(place.cost for place in new)
                if not cost or not self._in_flight or self._in_flight + cost <= self._limit:
                    self._in_flight += cost
                    taken = self._begin(job)
                    self._room.ring()  # there may be room for one more
                    return taken if self._allocate(taken.number, new) else None
                self._room.expect()
            self._room.wait()

    def _peek(self) -> Request | None:
        """The request to be taken next; None where there is none."""
        if self._upcoming is None:
            try:
                self._upcoming = next(self._jobs, None)
            except BaseException as error:  # whatever it is, the consumer has to hear of it
                self._unmade = error
                self._fail(self._next, error)
            if self._upcoming is None:
                self._files.begin(None)
        return self._upcoming

    def _begin(self, job: Request) -> _Taken:
        taken = _Taken(self._next, job)
        self._upcoming = None
        self._next += 1
        self._running.add(taken.number)
        self._files.begin(job.path)
        for place in job.places:
            self._left[place] = self._left.get(place, 0) + 1
        self._requested = job.requested
        self._allocated = job.last + 1
        return taken

    def _allocate(self, number: int, new: Iterable[Place]) -> bool:
        for place in new:
            try:
                place.allocate()
            except BaseException as error:  # out of memory, as a rule
                _note(error, place)
                self._fail(number, error)
                return False
        return True

    def _perform(self, number: int, job: Request) -> None:
        first = self._places[job.places[0]]

        def proceed() -> None:
            if self._stopped or (self._failed is not None and self._failed[0] < number):
                raise _StoppedError

        try:
            file = self._files.get(job.path)
            if isinstance(job, Scattered):
                memory = first.buffer(job.start, job.length)
                read_each(self._read, file, memory, job.stripes, name=first.name, proceed=proceed)
            else:
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

    def _end(self, number: int, job: Request) -> None:
        with self._lock:
            self._running.discard(number)
            for place in job.places:
                if self._left[place] == 1:
                    del self._left[place]
                else:
                    self._left[place] -= 1
            self._bytes_read += job.length
            # Each time the consumer wakes, it takes a CPU from a thread that copies.
            if self._are_whole(*self._awaited) or self._failed is not None:
                self._whole.ring()

    def _fail(self, number: int, error: BaseException) -> None:
        with self._lock:
            self._running.discard(number)
            if self._failed is None or number < self._failed[0]:
                self._failed = (number, error)
            self._whole.ring()
            self._room.ring_all()


def _numbered(loads: Iterable[HasPlaces], places: dict[int, Place]) -> Iterator[Place]:
    """The places of the loads, which ``places`` has by number from then on."""
    number = 0
    for load in loads:
        for place in load.places:
            places[number] = place
            number += 1
            yield place


def _note(error: BaseException, place: Place) -> None:
    """Say which tensor it was, where the error does not, as far as this Python can."""
    if not isinstance(error, CheckpointError) and hasattr(error, "add_note"):
        error.add_note(f"While tensor {place.name!r} was read from {place.path}")
