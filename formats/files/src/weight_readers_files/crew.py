# SPDX-License-Identifier: Apache-2.0
"""Threads that do one work together, and are waited for in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 10.0
"""How long whoever may be the garbage collector waits for threads. It begins anywhere, so its thread may hold a lock
that they need to end: of a log, of an import, of `threading.enumerate`."""


class Crew:
    """Threads that do the same work. To have it end before they are waited for is up to the caller.

    They are called ``name``-0, ``name``-1 …, and do not keep the program from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: set[threading.Thread] = set()

    def start(self, work: Callable[[], None], count: int) -> None:
        for number in range(count):
            thread = threading.Thread(target=self._run, args=(work,), name=f"{self._name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Ctrl-C while Python itself waits for the thread to begin: its condition then releases a lock twice.
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                raise
            self._threads.add(thread)

    def join(self, patience: float | None) -> bool:
        """Wait until all have ended, at most so many seconds. False where they may go on: they end by themselves then.

        So may they where the garbage collector called this in one of them, which cannot wait for itself.
        """
        threads = self._threads.copy()
        if threading.current_thread() in threads:
            return False
        deadline = None if patience is None else time.monotonic() + patience
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self, work: Callable[[], None]) -> None:
        # By itself too: a signal may be heard after it was started and before it was told of.
        self._threads.add(threading.current_thread())
        work()
