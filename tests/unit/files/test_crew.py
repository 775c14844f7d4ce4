# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest
from support.faults import SECONDS

from weight_readers_files.crew import Crew


def test_all_have_ended_once_they_were_waited_for() -> None:
    crew, done = Crew("worker"), []
    crew.start(lambda: done.append(threading.current_thread().name), 3)
    assert crew.join(None)
    assert sorted(done) == ["worker-0", "worker-1", "worker-2"]


def test_one_that_needs_a_lock_of_whoever_waits_is_not_waited_for_without_end() -> None:
    """As the collector may hold that of a log."""
    crew, lock = Crew("worker"), threading.Lock()

    def work() -> None:
        with lock:
            pass

    with lock:
        crew.start(work, 1)
        assert not crew.join(0.05)
    assert crew.join(SECONDS)


def test_one_of_them_does_not_wait_for_itself() -> None:
    crew, said = Crew("worker"), []
    crew.start(lambda: said.append(crew.join(None)), 1)
    assert crew.join(SECONDS)
    assert said == [False]


def test_one_that_was_started_before_a_signal_was_heard_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, go, done = Crew("worker"), threading.Event(), threading.Event()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        go.wait(SECONDS)
        raise KeyboardInterrupt

    def work() -> None:
        go.set()
        done.wait(SECONDS)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        crew.start(work, 1)
    assert not crew.join(0.01)
    done.set()
    assert crew.join(SECONDS)


def test_a_signal_that_is_heard_while_a_thread_begins_is_the_error_and_not_what_python_makes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Crew("worker").start(lambda: None, 1)


def test_that_there_is_no_thread_left_stays_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Crew("worker").start(lambda: None, 1)
