# SPDX-License-Identifier: Apache-2.0
"""What the machine is doing: page cache, memory by kind, bytes read, faults. Linux."""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import os
import platform
import resource
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_CACHESTAT = 451
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def cached_share(files: Sequence[str]) -> float:
    """The part of the files' pages that the page cache holds."""
    pages = sum(-(-os.stat(path).st_size // mmap.PAGESIZE) for path in files)
    return sum(_cached_pages(path) for path in files) / max(1, pages)


def _cached_pages(path: str) -> int:
    """By cachestat(2), which asks without a mapping; by mincore(2) before Linux 6.5."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        span, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
        if _libc.syscall(_CACHESTAT, descriptor, span, counts, 0) == 0:
            return int(counts[0])
        return _mincore(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _mincore(descriptor: int, size: int) -> int:
    if size == 0:
        return 0
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    answer = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    try:
        _libc.mincore(address, size, answer)
    finally:
        _libc.munmap(address, size)
    return sum(byte & 1 for byte in answer.raw[:-1])


def evict(files: Iterable[str]) -> None:
    """Drop the files from the page cache. What a disk or a host caches below it stays there."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def give_back() -> None:
    """Let malloc return what it keeps of freed memory: whoever loads once finds none."""
    if hasattr(_libc, "malloc_trim"):  # of glibc
        _libc.malloc_trim(0)


REST_SECONDS = 2.5


def rest() -> None:
    """Wait until the host of a virtual machine has memory that was freed (free page reporting: about 2 seconds).

    To take it anew costs some 0.6 s for each GiB, as it does for whoever begins to load; without a rest some arms
    would pay and some would not.
    """
    time.sleep(REST_SECONDS)


def warm(files: Sequence[str]) -> None:
    """Bring the files into the page cache, where they are not there already."""
    scratch = bytearray(4 << 20)
    for path in files:
        if cached_share([path]) < 1:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(scratch):
                    pass


def read_ahead_kb(path: str) -> int | None:
    """What the kernel reads ahead on the device of this file."""
    device = os.stat(path).st_dev
    try:
        return int(Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Counters:
    """Totals of this process, ended threads included. ``rchar`` counts bytes asked of read calls (not faults of a
    mapping, not io_uring), ``read_bytes`` what was fetched from storage on its behalf."""

    rchar: int
    read_bytes: int
    major_faults: int
    minor_faults: int

    @classmethod
    def now(cls) -> Counters:
        io = _fields(Path("/proc/self/io"))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(int(io["rchar"]), int(io["read_bytes"]), usage.ru_majflt, usage.ru_minflt)

    def until(self, later: Counters) -> dict[str, int]:
        return {name: getattr(later, name) - value for name, value in vars(self).items()}


def resident(process: int | str = "self") -> tuple[int, int]:
    """``(RssAnon, RssFile)`` in bytes; zeros for a process that has ended."""
    fields = _fields(Path(f"/proc/{process}/status"))
    return tuple(int(fields.get(name, "0").split()[0]) * 1024 for name in ("RssAnon", "RssFile"))  # type: ignore[return-value]


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


class MemorySampler:
    """A thread that samples the memory of *another* process, so that the one that is timed has no such thread."""

    def __init__(self, process: int, *, interval: float = 0.005) -> None:
        self._process = process
        self._interval = interval
        self._samples: list[tuple[int, int, int]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._interval):
            self._samples.append((time.monotonic_ns(), *resident(self._process)))

    def peak(self, begin: int, end: int) -> tuple[int, int]:
        """Highest ``(anonymous, file)`` seen between two times of ``time.monotonic_ns``."""
        within = [sample for sample in self._samples if begin <= sample[0] <= end]
        return max((s[1] for s in within), default=0), max((s[2] for s in within), default=0)


def machine(sample: str) -> dict[str, Any]:
    """What numbers of a run depend on; ``sample`` is a file on the disk that is measured."""
    import torch

    return {
        "python": platform.python_version(),
        "kernel": platform.release().split("-")[0],
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch_threads": torch.get_num_threads(),
        "transparent_hugepage": _chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "read_ahead_kb": read_ahead_kb(sample),
        "load_average": list(os.getloadavg()),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


_PACKAGES = (
    "weight-readers",
    "torch",
    "safetensors",
    "runai-model-streamer",
    "fastsafetensors",
)


def _chosen(path: Path) -> str | None:
    """``madvise`` of ``always [madvise] never``."""
    try:
        return path.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
