# SPDX-License-Identifier: Apache-2.0
"""A thread that tells the other ranks, while an operation runs, that this one lives and how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable

from weight_readers import RankLostError
from weight_readers_loader.distributed.peers import Beat, bytes_moved

INTERVAL = 0.5
"""Seconds from one beat to the next."""


class Heart:
    """Beats from `start` to `stop`; ``step`` is what the next beat says, and the file that this rank is ``at``."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.step = 0
        self._file = ""
        self._send = send
        self._number = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weight-readers-heart", daemon=True)

    def start(self) -> None:
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def at(self, file: str) -> None:
        """Told at once: who is killed does not come to its next beat."""
        if file != self._file:
            self._file = file
            self.beat()

    def beat(self) -> None:
        self._number += 1
        # In MiB: to look at the count is a read too, and no progress.
        beat = Beat(number=self._number, step=self.step, moved=bytes_moved() >> 20, file=self._file)
        self._send(beat.to_json())

    def _run(self) -> None:
        while not self._done.wait(INTERVAL):
            try:
                self.beat()
            except RankLostError:  # the store is gone: the operation sees that for itself
                return
