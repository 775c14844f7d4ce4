# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

from support.faults import SECONDS

from weight_readers_files.bell import Bell


def test_it_is_heard_by_one_that_is_about_to_wait() -> None:
    bell = Bell()
    bell.expect()
    bell.ring()
    assert bell.wait(SECONDS)


def test_it_is_not_heard_by_one_that_comes_later() -> None:
    bell = Bell()
    bell.ring()
    bell.expect()
    assert not bell.wait(0.01)


def test_it_rings_once_for_each_that_waits() -> None:
    bell = Bell(2)
    bell.expect()
    bell.expect()
    for _ in range(3):
        bell.ring()
    assert [bell.wait(0.01) for _ in range(3)] == [True, True, False]


def test_one_that_stopped_waiting_and_came_again_counts_once() -> None:
    bell = Bell()
    for _ in range(5):
        bell.expect()
        assert not bell.wait(0.001)
    bell.ring()
    bell.ring()
    assert [bell.wait(0.01) for _ in range(2)] == [True, False]


def test_at_the_end_it_is_heard_by_all_whether_they_wait_yet_or_not() -> None:
    bell = Bell(3)
    heard: list[bool] = []
    threads = [threading.Thread(target=lambda: heard.append(bell.wait(SECONDS))) for _ in range(3)]
    threads[0].start()
    bell.ring_all()
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert heard == [True, True, True]
