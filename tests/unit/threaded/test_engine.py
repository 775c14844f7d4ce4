# SPDX-License-Identifier: Apache-2.0
"""The engine, over small files and memory that counts: order, bounds, failures, and that nothing is left."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from support.faults import SECONDS, Gate, Read, Recorded, at_once, failing, short, whole
from support.measure import nothing_left_open

from weight_readers import CheckpointError, UnreadableFileError
from weight_readers_threaded.engine import Engine
from weight_readers_threaded.files import OpenFile

CONTENT = bytes(n % 251 for n in range(1000))
THREADS = [1, 2, 4, 16]


class Held:
    """Bytes in flight over all places, now and at most."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def add(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)


class Memory:
    """A place that counts what it holds."""

    def __init__(self, name: str, path: str, begin: int, nbytes: int, held: Held) -> None:
        self.name = name
        self.path = path
        self.ranges = [(begin, nbytes)]
        self.places = [self]
        self.cost = nbytes
        self.held = held
        self.data: bytearray | None = None
        self.dropped = False

    def allocate(self) -> None:
        assert self.data is None, "allocated twice"
        self.data = bytearray(self.cost)
        self.held.add(self.cost)

    def buffer(self, start: int, length: int) -> memoryview:
        assert self.data is not None
        return memoryview(self.data)[start : start + length]

    def deliver(self) -> None:
        pass

    def drop(self) -> None:
        self.dropped = True
        self.data = None

    def take(self) -> bytes:
        data, self.data = self.data, None
        self.held.add(-self.cost)
        return bytes(data or b"")


class Unlucky(Memory):
    """A place that cannot be allocated."""

    error: BaseException = MemoryError("no more")

    def allocate(self) -> None:
        raise self.error


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(CONTENT)
    return str(tmp_path / "file")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    with nothing_left_open(), at_once():
        yield


def places_of(path: str, sizes: Sequence[int], held: Held | None = None) -> list[Memory]:
    held, at, places = held or Held(), 0, []
    for number, size in enumerate(sizes):
        places.append(Memory(f"t{number}", path, at, size, held))
        at += size
    return places


def engine(
    places: Sequence[Memory], *, threads: int = 4, limit: int = 1 << 20, read: Read = whole, chunk: int = 7
) -> Engine[Memory]:
    return Engine(
        places, chunk_bytes=chunk, ranges=len(places), threads=threads, limit=limit, read=read, open_file=OpenFile
    )


def all_end(reading: Engine[Memory]) -> bool:
    """Whether the threads end, without being told to."""
    return reading._crew.join(SECONDS)


def consumed(places: Sequence[Memory], **options: object) -> Iterator[bytes]:
    with engine(places, **options) as reading:  # type: ignore[arg-type]
        for index, place in enumerate(places):
            reading.wait(index)
            reading.release(index)
            yield place.take()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("read", [whole, short()], ids=["whole", "short"])
def test_places_come_whole_and_in_order(path: str, threads: int, read: Read) -> None:
    sizes = [1, 0, 30, 2, 2, 2, 0, 100, 3]
    got = list(consumed(places_of(path, sizes), threads=threads, read=read))
    assert sizes == [len(each) for each in got]
    assert CONTENT[:140] == b"".join(got)


def test_without_requests_there_is_no_thread(path: str) -> None:
    with engine(places_of(path, [0, 0])) as reading:
        assert [reading.threads, reading.wait(0), reading.wait(1)] == [0, True, True]


@pytest.mark.parametrize("limit", [1, 20, 64])
@pytest.mark.parametrize("threads", THREADS)
def test_no_more_is_in_flight_than_the_limit_or_the_largest_place(path: str, limit: int, threads: int) -> None:
    sizes = [10, 1, 1, 50, 3, 0, 20, 9, 9, 9, 30] * 7
    held = Held()
    assert CONTENT[: sum(sizes)] == b"".join(consumed(places_of(path, sizes, held), threads=threads, limit=limit))
    assert held.peak <= limit + 50


def test_threads_read_ahead_of_a_resting_consumer_up_to_the_limit_and_no_further(path: str) -> None:
    held, read = Held(), Recorded()
    got = consumed(places_of(path, [10] * 100, held), limit=50, read=read)
    next(got)
    while held.now < 50:
        threading.Event().wait(0.001)
    threading.Event().wait(0.05)
    assert (held.now, held.peak) == (50, 50)
    assert read.bytes_asked() <= 60
    next(got)
    while held.now < 50:
        threading.Event().wait(0.001)
    got.close()


def test_a_place_larger_than_the_limit_is_read_when_nothing_else_is_in_flight(path: str) -> None:
    held = Held()
    assert [len(each) for each in consumed(places_of(path, [4, 300, 4], held), limit=10)] == [4, 300, 4]
    assert held.peak == 300


def test_all_threads_read_at_once(path: str) -> None:
    gate = Gate()
    with engine(places_of(path, [7] * 8), threads=8, read=gate) as reading:
        gate.await_arrivals(8)
        gate.open()
        reading.wait(7)


def test_room_for_several_requests_wakes_several_threads(path: str) -> None:
    held = Held()
    places = [Memory("first", path, 0, 28, held), *(Memory(f"t{n}", path, 100 + 20 * n, 7, held) for n in range(4))]
    gate = Gate()

    def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
        return gate(file, buffers, offset) if offset else whole(file, buffers, offset)

    with engine(places, threads=4, limit=28, read=read, chunk=28) as reading:
        reading.wait(0)
        threading.Event().wait(0.05)  # the threads wait for room by now
        places[0].take()
        reading.release(0)
        gate.await_arrivals(4)
        gate.open()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "broken"), MemoryError("none"), KeyboardInterrupt(), SystemExit()]
)
def test_what_stands_before_a_failure_is_handed_out_and_then_the_failure(
    path: str, threads: int, error: BaseException
) -> None:
    got = consumed(places_of(path, [10] * 50), threads=threads, read=failing(error, begin=225, end=226))
    expected = UnreadableFileError if isinstance(error, OSError) else type(error)
    assert len([next(got) for _ in range(22)]) == 22
    with pytest.raises(expected) as caught:
        next(got)
    if isinstance(caught.value, CheckpointError):
        assert (path, "t22") == (caught.value.path, caught.value.tensor)
    else:
        assert [f"While tensor 't22' was read from {path}"] == getattr(caught.value, "__notes__", [])[-1:]


@pytest.mark.parametrize("threads", THREADS)
def test_of_several_failures_the_earliest_is_raised(path: str, threads: int) -> None:
    """The second is there first: the request before it is still being read."""
    late = threading.Event()

    def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
        if offset == 70:
            late.wait(0 if threads == 1 else 0.05)
            raise OSError(errno.EIO, "first")
        if offset > 70:
            late.set()
            raise OSError(errno.EIO, "second")
        return whole(file, buffers, offset)

    with pytest.raises(UnreadableFileError, match="first") as caught:
        list(consumed(places_of(path, [7] * 50), threads=threads, read=read))
    assert caught.value.tensor == "t10"


def test_after_a_failure_no_more_requests_are_made(path: str) -> None:
    broken = failing(OSError(errno.EIO, "broken"), begin=14, end=15)
    read = Recorded(lambda *request: (request[2] > 14 and threading.Event().wait(0.01)) or broken(*request))
    with pytest.raises(UnreadableFileError):
        list(consumed(places_of(path, [1] * 1000), threads=4, read=read, chunk=1))
    assert len(read.reads) < 500


def test_a_failure_stops_later_requests_between_their_short_reads_whatever_the_consumer_does(path: str) -> None:
    """They would take minutes."""

    def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
        threading.Event().wait(0.2)
        if offset < 10:
            raise OSError(errno.EIO, "broken")
        return whole(file, [buffers[0][:1]], offset)

    with engine(places_of(path, [10, 900]), threads=2, read=read, chunk=900) as reading:
        assert all_end(reading)


@pytest.mark.parametrize("error", [MemoryError("no more"), RuntimeError("odd"), SystemExit()])
@pytest.mark.parametrize("threads", THREADS)
def test_memory_that_cannot_be_had_is_a_failure_like_any_other(path: str, threads: int, error: BaseException) -> None:
    places = places_of(path, [7] * 20)
    places[5] = Unlucky("t5", path, 35, 7, places[5].held)
    places[5].error = error  # type: ignore[attr-defined]
    got = consumed(places, threads=threads)
    assert len([next(got) for _ in range(5)]) == 5
    with pytest.raises(type(error)) as caught:
        next(got)
    assert [f"While tensor 't5' was read from {path}"] == getattr(caught.value, "__notes__", [])[-1:]


def test_a_file_that_cannot_be_opened_is_a_failure(path: str) -> None:
    places = places_of(path, [7] * 4)
    for place in places[2:]:
        place.path = path + ".gone"
    got = consumed(places)
    assert len([next(got) for _ in range(2)]) == 2
    with pytest.raises(CheckpointError, match="removed") as caught:
        next(got)
    assert path + ".gone" == caught.value.path


@pytest.mark.parametrize("taken", [0, 1, 5])
@pytest.mark.parametrize("threads", THREADS)
def test_closing_early_stops_threads_that_wait_for_room_or_read(path: str, taken: int, threads: int) -> None:
    places = places_of(path, [10] * 90)
    got = consumed(places, threads=threads, limit=30, read=short(2))
    for _ in range(taken):
        next(got)
    got.close()
    assert all(place.data is None for place in places)


def test_closing_waits_for_the_reads_in_progress_before_memory_is_dropped(path: str) -> None:
    gate, places = Gate(), places_of(path, [7] * 4)
    reading = engine(places, threads=2, read=gate)
    reading.__enter__()
    gate.await_arrivals(2)
    closing = threading.Thread(target=reading.__exit__)
    closing.start()
    threading.Event().wait(0.05)
    assert closing.is_alive()
    assert not places[0].dropped
    gate.open()
    closing.join(SECONDS)
    assert places[0].dropped


def test_a_consumer_that_waits_is_told_at_once_that_reading_was_ended(path: str) -> None:
    gate, told = Gate(), []
    reading = engine(places_of(path, [7] * 4), threads=2, read=gate)

    def consume() -> None:
        with pytest.raises(RuntimeError, match="reading was ended"):
            reading.wait(3)
        told.append(gate.arrived)

    reading.__enter__()
    gate.await_arrivals(2)
    consuming = threading.Thread(target=consume)
    consuming.start()
    closing = threading.Thread(target=reading.__exit__)
    closing.start()
    consuming.join(SECONDS)
    assert told == [2]
    gate.open()
    closing.join(SECONDS)


def test_a_consumer_sleeps_until_all_that_it_waits_for_is_whole(path: str) -> None:
    places = places_of(path, [70, 70])
    with engine(places, threads=1) as reading:
        condition, slept = reading._whole, []
        condition.wait = lambda seconds=None: slept.append(1) or type(condition).wait(condition, seconds)  # type: ignore[method-assign, assignment, func-returns-value]
        assert reading.wait(0, count=2)
        assert len(slept) <= 1
        assert [place.take() for place in places] == [CONTENT[:70], CONTENT[70:140]]


def test_slow_storage_is_left_between_its_short_reads(path: str) -> None:
    """At one byte per 10 ms the request would take ten seconds."""
    gate = Recorded(lambda file, buffers, offset: threading.Event().wait(0.01) or whole(file, [buffers[0][:1]], offset))
    reading = engine(places_of(path, [1000]), read=gate, chunk=1000)
    with reading:
        while not gate.reads:
            threading.Event().wait(0.001)
    assert len(gate.reads) < 100


def test_an_error_that_is_kept_keeps_no_memory(path: str) -> None:
    places = places_of(path, [10] * 20)
    with pytest.raises(UnreadableFileError) as caught:
        list(consumed(places, read=failing(OSError(errno.EIO, "broken"), begin=55)))
    assert caught.value.tensor == "t5"
    assert all(place.data is None for place in places)


def test_an_engine_that_failed_is_no_cycle(path: str) -> None:
    def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, "broken")

    gc.collect()
    gc.disable()
    try:
        reading = engine(places_of(path, [10] * 20), read=read)
        with suppress(UnreadableFileError), reading:
            reading.wait(19)
        gone = weakref.ref(reading)
        del reading
        assert gone() is None
    finally:
        gc.enable()


def test_threads_that_cannot_be_started_leave_none_behind(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        engine(places_of(path, [10] * 20), limit=10).__enter__()
    assert [thread.is_alive() for thread in started] == [False, False]


def test_a_generator_collected_in_one_of_its_own_threads_does_not_wait_for_itself(path: str) -> None:
    """The garbage collector runs in whichever thread allocates, and closes what it finds there."""
    held: list[Engine[Memory]] = []
    closed: list[bool] = []
    entered = threading.Event()

    def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
        entered.wait(SECONDS)
        if held:
            held.pop().__exit__()
            closed.append(True)
        return whole(file, buffers, offset)

    reading = engine(places_of(path, [7] * 30), threads=2, read=read)
    held.append(reading)
    reading.__enter__()
    entered.set()
    assert all_end(reading)
    assert closed == [True]
    reading.__exit__()


def test_a_generator_collected_in_a_thread_that_opens_a_file_does_not_stop_the_others(tmp_path: Path) -> None:
    """They take requests meanwhile, and wait for the lock under which files are opened."""
    files = [tmp_path / f"file-{n}" for n in range(4)]
    for file in files:
        file.write_bytes(CONTENT)
    places = [Memory(f"t{n}", str(file), 0, 7, Held()) for n, file in enumerate(files)]

    def open_file(name: str) -> OpenFile:
        threading.Event().wait(0.05)
        reading.__exit__()
        return OpenFile(name)

    reading = Engine(places, chunk_bytes=7, ranges=4, threads=3, limit=100, read=whole, open_file=open_file)
    with reading:
        assert all_end(reading)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_generator_collected_in_a_thread_that_is_about_to_wait_for_room_ends_it(path: str, threads: int) -> None:
    class Large(Memory):
        @property
        def cost(self) -> int:
            if reading._in_flight:
                reading.__exit__()
            return 20

        @cost.setter
        def cost(self, nbytes: int) -> None:
            pass

        def allocate(self) -> None:
            self.data = bytearray(20)

    places = [Large(f"t{n}", path, 20 * n, 20, Held()) for n in range(8)]
    reading = engine(places, threads=threads, limit=30, chunk=20)
    with reading:
        assert all_end(reading)


def test_progress_is_told_as_bytes_arrive(path: str) -> None:
    places = places_of(path, [70])
    seen = []
    with engine(places, threads=1) as reading:
        while not reading.wait(0, seconds=0.001):
            seen.append(reading.bytes_read)
        assert reading.bytes_read == 70
    assert seen == sorted(seen)
    assert all(each % 7 == 0 for each in seen)


def test_no_more_loads_exist_than_are_read_ahead(path: str) -> None:
    made: list[Memory] = []
    held = Held()

    def loads() -> Iterator[Memory]:
        for number in range(100):
            made.append(Memory(f"t{number}", path, 7 * number, 7, held))
            yield made[-1]

    reading = Engine(loads(), chunk_bytes=7, ranges=100, threads=2, limit=20, read=whole, open_file=OpenFile)
    with reading:
        consumer = reading.loads()
        for index in range(50):
            load = next(consumer)
            reading.wait(index)
            load.take()
            reading.release(index)
            assert len(made) <= index + 6
            assert len(reading._places) <= 6
    assert len(made) < 60


@pytest.mark.parametrize("threads", THREADS)
def test_a_load_that_cannot_be_made_is_a_failure(path: str, threads: int) -> None:
    def loads() -> Iterator[Memory]:
        yield from places_of(path, [7] * 30)
        raise LookupError("no more")

    def consume() -> None:
        with Engine(loads(), chunk_bytes=7, ranges=40, threads=threads, limit=14, read=whole, open_file=OpenFile) as it:
            for index, load in enumerate(it.loads()):
                it.wait(index)
                it.release(index)
                got.append(load.take())

    got: list[bytes] = []
    with pytest.raises(LookupError, match="no more"):
        consume()
    assert CONTENT[: 7 * len(got)] == b"".join(got)


def test_all_loads_are_told_of_although_a_later_one_has_failed_already(path: str) -> None:
    """What is before it becomes whole meanwhile: a consumer that asks for the next load does not hear of it first."""
    failed, go_on = threading.Event(), threading.Event()

    def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
        if offset < 10:
            go_on.wait(SECONDS)
            return whole(file, buffers, offset)
        failed.set()
        raise OSError(errno.EIO, "broken")

    places = places_of(path, [10, 10])
    with engine(places, threads=2, read=read, chunk=10) as reading:
        assert failed.wait(SECONDS)
        while 1 in reading._running:
            pass
        assert list(reading.loads()) == places
        go_on.set()
        assert reading.wait(0)
        assert places[0].take() == CONTENT[:10]
        with pytest.raises(UnreadableFileError):
            reading.wait(1)
