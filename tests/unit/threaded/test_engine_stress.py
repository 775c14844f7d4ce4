# SPDX-License-Identifier: Apache-2.0
"""The engine under whatever comes together: any bound, failures, a consumer that leaves, a collector in any thread."""

from __future__ import annotations

import errno
import gc
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.faults import SECONDS, Read, short
from support.measure import descriptors
from unit.threaded.test_engine import CONTENT, Memory, places_of

from weight_readers import UnreadableFileError
from weight_readers_threaded.engine import Engine
from weight_readers_threaded.files import OpenFile

ROUNDS = 300


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(CONTENT)
    return str(tmp_path / "file")


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def reads(chance: random.Random, broken: int | None) -> Read:
    """A few bytes at a time, failing at byte ``broken``; now and then the collector runs in the thread that reads."""
    some = short()

    def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
        if chance.random() < 0.02:
            gc.collect(0)
        if broken is not None and offset <= broken < offset + sum(map(len, buffers)):
            raise OSError(errno.EIO, "broken")
        return some(file, buffers, offset)

    return read


def consumed(engine: Engine[Memory]) -> Iterator[bytes]:
    with engine:
        for index, load in enumerate(engine.loads()):
            engine.wait(index)
            engine.release(index)
            yield load.take()


def left_to_the_collector(rest: Iterator[bytes]) -> None:
    cycle: list[object] = [rest]
    cycle.append(cycle)


def run(path: str, chance: random.Random) -> None:
    """One reading, until it is whole, fails or is left: what was handed out is the beginning of the file."""
    sizes = [chance.choice([0, 1, 3, 7, 20]) for _ in range(chance.randrange(1, 40))]
    broken = chance.randrange(sum(sizes)) if sum(sizes) and chance.random() < 0.3 else None
    leaves = chance.randrange(len(sizes) + 1) if chance.random() < 0.3 else None
    engine = Engine(
        places_of(path, sizes),
        chunk_bytes=chance.randrange(1, 10),
        ranges=len(sizes),
        threads=chance.choice([1, 2, 3, 4, 16]),
        limit=chance.choice([1, 5, 30, 1000]),
        read=reads(chance, broken),
        open_file=OpenFile,
        patience=SECONDS,
    )
    got, rest = [], consumed(engine)
    try:
        while len(got) != leaves:
            got.append(next(rest))
    except UnreadableFileError:
        assert broken is not None
        assert sum(sizes[: len(got)]) <= broken
    except StopIteration:
        assert (len(got), broken) == (len(sizes), None)
    else:
        left_to_the_collector(rest)
    assert b"".join(got) == CONTENT[: sum(sizes[: len(got)])]


def test_readings_of_every_kind_end_and_leave_nothing(path: str) -> None:
    files = len(descriptors())
    chance = random.Random(0)
    for number in range(ROUNDS):
        begin = time.monotonic()
        run(path, chance)
        assert time.monotonic() - begin < SECONDS, f"round {number}"
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("weight-reader"):
            thread.join(SECONDS)
            assert not thread.is_alive()
    gc.collect()
    assert files == len(descriptors())
