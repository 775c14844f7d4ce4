# SPDX-License-Identifier: Apache-2.0
"""One copy of a stored file: of its full size from the beginning, with holes where nothing was fetched yet.

Which bytes have arrived stands in a file beside it, written after them. A copy with holes belongs to one process at a
time; one without is never written to again, and everybody's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from weight_readers import FetchesRanges, FileVersion
from weight_readers_loader.copies import spans
from weight_readers_loader.copies.spans import Span

BATCH_BYTES = 256 << 20
"""Fetched between two looks at the stored file. What an interruption loses is at most this."""
_COPY_BYTES = 8 << 20

Arrived = Callable[[int], None]
"""Told of bytes as they arrive."""


class Slot:
    """``folder`` holds the copy under the file's own name; ``version`` is what it is a copy of."""

    def __init__(self, folder: Path, uri: str, version: FileVersion) -> None:
        self.path = folder / uri.rpartition("/")[2]
        self._uri = uri
        self._version = version
        self._record = folder / "arrived.json"
        self._lock = FileLock(folder / "lock", timeout=0, thread_local=False)

    @property
    def present(self) -> list[Span]:
        """What has arrived. Nothing where the record or the copy is not what this project wrote."""
        try:
            held = json.loads(self._record.read_text())["arrived"]
            found = spans.union((int(begin), int(end)) for begin, end in held)
            right = self.path.stat().st_size == self._version.nbytes
        except (OSError, ValueError, TypeError, KeyError):
            return []
        return found if right and (not found or found[-1][1] <= self._version.nbytes) else []

    def lacks(self, wanted: Sequence[Span]) -> list[Span]:
        return spans.without(wanted, self.present)

    @property
    def is_whole(self) -> bool:
        return self.present == [(0, self._version.nbytes)]

    def take(self) -> bool:
        """Have it for oneself, if nobody else does."""
        try:
            self._lock.acquire()
        except Timeout:
            return False
        return True

    def release(self) -> None:
        self._lock.release()

    def adopt(self, other: Slot, wanted: Sequence[Span]) -> None:
        """Take what is missing of ``wanted`` from another copy, which may be in use: what it has stays as it is."""
        missing = self.lacks(wanted)
        held = spans.without(missing, other.lacks(missing))
        if not held:
            return
        with self._opened() as target, other.path.open("rb", buffering=0) as source:
            for begin, end in held:
                while begin < end:
                    data = os.pread(source.fileno(), min(end - begin, _COPY_BYTES), begin)
                    if not data:
                        return
                    begin += _write_all(target, memoryview(data), begin)
            self._arrived(target, held)

    def fetch(self, fetcher: FetchesRanges, wanted: Sequence[Span], arrived: Arrived) -> None:
        """Get what is missing of ``wanted``; raises what the fetcher does, and OSError of the file system.

        Each batch counts as arrived when the stored file was found unchanged after it, and when it is on the disk.
        """
        with self._opened() as descriptor:

            def write(offset: int, data: memoryview) -> None:
                arrived(_write_all(descriptor, data, offset))

            for batch in spans.batches(self.lacks(wanted), BATCH_BYTES):
                ranges = [(begin, end - begin) for begin, end in batch]
                fetcher.fetch(self._uri, ranges, write, version=self._version)
                self._arrived(descriptor, batch)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not self.present:
                os.ftruncate(descriptor, 0)
                self._write_record([])
            os.ftruncate(descriptor, self._version.nbytes)
            yield descriptor
        finally:
            os.close(descriptor)

    def _arrived(self, descriptor: int, new: Sequence[Span]) -> None:
        os.fsync(descriptor)
        self._write_record(spans.union([*self.present, *new]))

    def _write_record(self, present: Sequence[Span]) -> None:
        document = {"uri": self._uri, "nbytes": self._version.nbytes, "tag": self._version.tag, "arrived": present}
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.replace(self._record)


def _write_all(descriptor: int, data: memoryview, offset: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
    return done
