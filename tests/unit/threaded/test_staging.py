# SPDX-License-Identifier: Apache-2.0
"""The ring of staging memory, with copies that end late, in a thread of their own."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.faults import SECONDS

from weight_readers_threaded.staging import BLOCK_BYTES, IN_FLIGHT_BYTES, STAGING_BYTES, Ring, ring_for


class LateStreams:
    """A "device" in host memory. A copy is made by another thread, some time after it was asked for."""

    def __init__(self) -> None:
        self.allocated: list[int] = []
        self.waited = 0
        self._copies: queue.Queue[tuple[torch.Tensor, torch.Tensor, threading.Event] | None] = queue.Queue()
        self._held = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while (copy := self._copies.get()) is not None:
            source, target, done = copy
            assert self._held.wait(SECONDS)
            target.copy_(source)
            done.set()

    def memory(self, nbytes: int) -> torch.Tensor:
        self.allocated.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        done = threading.Event()
        self._copies.put((source, target, done))
        return done

    def wait(self, event: Any) -> None:
        self.waited += 1
        assert event.wait(SECONDS)

    def join(self) -> None:
        done = self.copy(torch.empty(0), torch.empty(0))
        self.let_go()
        assert done.wait(SECONDS)

    def let_go(self) -> None:
        self._held.set()

    def hold(self) -> None:
        self._held.clear()

    def end(self) -> None:
        self.let_go()
        self._copies.put(None)
        self._thread.join(SECONDS)


@pytest.fixture
def streams() -> Iterator[LateStreams]:
    made = LateStreams()
    yield made
    made.end()


def send(ring: Ring, value: int, nbytes: int) -> torch.Tensor:
    """Stage a block full of ``value`` and send it; what it goes to is returned."""
    part = ring.stage(nbytes)
    part.memory.fill_(value)
    target = torch.zeros(nbytes, dtype=torch.uint8)
    ring.send(part, target)
    return target


def test_memory_is_not_used_again_before_its_copy_is_done(streams: LateStreams) -> None:
    ring = Ring(streams)
    fits = STAGING_BYTES // BLOCK_BYTES
    targets = [send(ring, value, BLOCK_BYTES) for value in range(1, fits + 1)]
    assert (streams.waited, int(targets[0].sum())) == (0, 0)
    threading.Timer(0.05, streams.let_go).start()
    targets += [send(ring, value, BLOCK_BYTES) for value in range(fits + 1, 2 * fits + 1)]
    ring.finish()
    assert [(value, value) for value in range(1, 2 * fits + 1)] == [(int(t.min()), int(t.max())) for t in targets]
    assert fits == streams.waited


def test_memory_is_allocated_once_and_only_when_it_is_needed(streams: LateStreams) -> None:
    ring = Ring(streams)
    assert streams.allocated == []
    streams.let_go()
    for _ in range(9):
        send(ring, 1, BLOCK_BYTES)
    assert streams.allocated == [STAGING_BYTES]


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_any_size_within_the_bound_always_have_room(seed: int, streams: LateStreams) -> None:
    sizes = random.Random(seed)
    streams.let_go()
    ring = Ring(streams)
    staged: list[Any] = []
    sent: list[tuple[int, torch.Tensor]] = []
    in_flight = 0
    for number in range(400):
        nbytes = sizes.choice([1, 63, 4096, BLOCK_BYTES // 3, BLOCK_BYTES - 1, BLOCK_BYTES])
        while in_flight + ring.cost(nbytes) > IN_FLIGHT_BYTES:
            value, part = staged.pop(0)
            target = torch.zeros_like(part.memory)
            ring.send(part, target)
            sent.append((value, target))
            in_flight -= ring.cost(part.memory.numel())
        part = ring.stage(nbytes)
        part.memory[0], part.memory[-1] = number % 251, number % 251
        staged.append((number % 251, part))
        in_flight += ring.cost(nbytes)
    ring.finish()
    assert [value for value, _ in sent] == [int(target[0]) for _, target in sent]
    assert [value for value, _ in sent] == [int(target[-1]) for _, target in sent]


def test_blocks_are_aligned_for_every_dtype(streams: LateStreams) -> None:
    ring = Ring(streams)
    first, second = ring.stage(3), ring.stage(16)
    assert (first.memory.numel(), second.memory.numel()) == (3, 16)
    assert (second.memory.data_ptr() - first.memory.data_ptr()) % 16 == 0
    target = torch.zeros(2, dtype=torch.complex64)
    ring.send(second, target)


def test_on_the_host_a_block_has_arrived_when_it_was_sent() -> None:
    ring = ring_for(torch.device("cpu"))
    target = torch.zeros(4, 6)[:, ::2]
    part = ring.stage(target.nbytes)
    part.memory.copy_(torch.arange(12.0).view(torch.uint8))
    ring.send(part, target)
    assert torch.arange(12.0).view(4, 3).equal(target)
