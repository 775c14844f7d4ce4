# SPDX-License-Identifier: Apache-2.0
"""Read ahead of the consumer: background threads pull the planned ranges into the page cache."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from weight_readers import CheckpointError
from weight_readers_mmap.source import Source

CHUNK_BYTES = 4 << 20
WINDOW_BYTES = 256 << 20
"""How far the threads run ahead of the consumer: what they read must still be cached when its turn comes."""

Range = tuple[str, int, int]


class ReadAhead:
    """Reads ``(path, offset, length)`` ranges in order, at most ``window`` bytes ahead of `advance`.

    The first read error stops all threads and is raised by the consumer's next `advance`: touching a page that
    cannot be read would end the process with SIGBUS instead. `close` stops the threads within one chunk.
    """

    def __init__(self, ranges: Iterable[Range], *, threads: int, window: int = WINDOW_BYTES) -> None:
        self._chunks = _chunks(ranges)
        self._window = window
        self._next = 0
        self._started_bytes = 0
        self._consumed_bytes = 0
        self._stopped = False
        self._error: CheckpointError | None = None
        self._changed = threading.Condition()
        count = min(threads, len(self._chunks))
        self._threads = [threading.Thread(target=self._run, name=f"read-ahead-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def advance(self, nbytes: int) -> None:
        """Tell that the consumer has taken ``nbytes`` more. Raises what a thread failed with."""
        with self._changed:
            self._consumed_bytes += nbytes
            self._changed.notify_all()
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        scratch = memoryview(bytearray(CHUNK_BYTES))
        try:
            while (chunk := self._take()) is not None:
                path, offset, length = chunk
                with Source(path, readonly=True) as source:
                    source.read_into(scratch[:length], offset)
        except CheckpointError as error:
            with self._changed:
                self._error = self._error or error
                self._stopped = True

    def _take(self) -> Range | None:
        """The next chunk, once it is within the window; None when there is none or all is over."""
        with self._changed:
            while not self._stopped and self._next < len(self._chunks):
                if self._started_bytes < self._consumed_bytes + self._window:
                    chunk = self._chunks[self._next]
                    self._next += 1
                    self._started_bytes += chunk[2]
                    return chunk
                self._changed.wait()
            return None


def _chunks(ranges: Iterable[Range]) -> Sequence[Range]:
    return [
        (path, start, min(CHUNK_BYTES, offset + length - start))
        for path, offset, length in ranges
        for start in range(offset, offset + length, CHUNK_BYTES)
    ]
