# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for one another, whatever a signal or the garbage collector does between two instructions."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Bell:
    """Wakes threads that wait for something to change, which a lock of their own guards.

    ::

        while True:
            with lock:
                if there is what to wait for: break
                bell.expect()
            bell.wait()

    In place of a `threading.Condition`, which two things bring to a standstill. A signal that is heard right after
    its lock was taken, as with Ctrl-C, leaves the lock taken for ever: ``__enter__`` is a Python function, and raises
    then. And the garbage collector may run what notifies in a thread that has looked, found nothing and is about to
    wait. Here no lock is held while waiting, and what was rung stays until it is heard.

    waiters: how many threads wait at once, at most.
    """

    def __init__(self, waiters: int = 1) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()
        self._waiters = waiters
        self._expected = 0

    def expect(self) -> None:
        """The calling thread, which holds the lock, will wait once it does not."""
        self._expected = min(self._expected + 1, self._waiters)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it rings, perhaps for nothing; False where it does not within so many seconds."""
        try:
            self._rings.get(timeout=seconds)
        except Empty:
            return False
        return True

    def ring(self) -> None:
        """Wake one that waits, if there is any. The lock is held."""
        if self._expected:
            self._expected -= 1
            self._rings.put(None)

    def ring_all(self) -> None:
        """Wake all there can be, as there is nothing to wait for any more. With or without the lock."""
        for _ in range(self._waiters):
            self._rings.put(None)
