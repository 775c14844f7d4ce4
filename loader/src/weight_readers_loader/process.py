# SPDX-License-Identifier: Apache-2.0
"""What this process costs: resident memory by kind, bytes read from storage, major faults."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")
_IO = Path("/proc/self/io")


def resident_bytes() -> tuple[int, int] | None:
    """``(RssAnon, RssFile)`` in bytes, file pages including shared memory; None off Linux."""
    fields = _fields(_STATUS)
    if "RssAnon" not in fields:
        return None
    kib = {name: int(fields[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem")}
    return kib["RssAnon"] * 1024, (kib["RssFile"] + kib["RssShmem"]) * 1024


def storage_bytes_read() -> int | None:
    """Bytes that this process caused to be fetched from storage so far, faults included; None off Linux."""
    fields = _fields(_IO)
    return int(fields["read_bytes"]) if "read_bytes" in fields else None


def major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt if resource is not None else 0


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


class PeakMemory:
    """Samples resident memory while a block runs; ``anon`` and ``file`` are the highest seen, in bytes."""

    def __init__(self, *, interval: float = 0.02) -> None:
        self.anon: int | None = None
        self.file: int | None = None
        self._interval = interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._done.wait(self._interval):
            self._sample()

    def _sample(self) -> None:
        resident = resident_bytes()
        if resident is not None:
            self.anon = max(self.anon or 0, resident[0])
            self.file = max(self.file or 0, resident[1])
