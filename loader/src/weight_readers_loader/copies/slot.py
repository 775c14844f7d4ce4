# SPDX-License-Identifier: Apache-2.0
"""One copy of a stored file: of its full size from the beginning, with holes where nothing was fetched yet.

Which bytes have arrived stands in a file beside it, written after them. A copy with holes belongs to one process at a
time; one without is never written to again, and everybody's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from weight_readers import FetchesRanges, FileVersion
from weight_readers_loader.copies import spans
from weight_readers_loader.copies.spans import Span

BATCH_BYTES = 256 << 20
"""Fetched between two looks at the stored file. What an interruption loses is at most this."""

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

    def fetch(self, fetcher: FetchesRanges, wanted: Sequence[Span], arrived: Arrived) -> None:
        """Get what is missing of ``wanted``; raises what the fetcher does, and OSError of the file system.

        Each batch counts as arrived when the stored file was found unchanged after it, and when it is on the disk.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            present = self.present
            if not present:
                os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, self._version.nbytes)

            def write(offset: int, data: memoryview) -> None:
                count = len(data)
                while data:
                    done = os.pwrite(descriptor, data, offset)
                    data, offset = data[done:], offset + done
                arrived(count)

            for batch in spans.batches(spans.without(wanted, present), BATCH_BYTES):
                ranges = [(begin, end - begin) for begin, end in batch]
                fetcher.fetch(self._uri, ranges, write, version=self._version)
                os.fsync(descriptor)
                present = spans.union([*present, *batch])
                self._write_record(present)
        finally:
            os.close(descriptor)

    def _write_record(self, present: Sequence[Span]) -> None:
        document = {"uri": self._uri, "nbytes": self._version.nbytes, "tag": self._version.tag, "arrived": present}
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.replace(self._record)
