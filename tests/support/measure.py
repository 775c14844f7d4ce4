# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows: cached pages of a file, mappings, memory by kind, descriptors. Counts, never times."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)

PAGE = mmap.PAGESIZE
TESTS = Path(__file__).parents[1]


def new_memory(nbytes: int) -> mmap.mmap:
    """Anonymous memory of this process alone, written. A heap may give what an earlier test has left there."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(nbytes))
    return memory


def cached_pages(path: Path) -> list[bool]:
    """For each page of the file, whether the page cache holds it (mincore(2) of a mapping that nobody touches)."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    answer = ctypes.create_string_buffer(-(-size // PAGE))
    try:
        assert _libc.mincore(address, size, answer) == 0, os.strerror(ctypes.get_errno())
    finally:
        _libc.munmap(address, size)
    return [bool(byte & 1) for byte in answer.raw[: -(-size // PAGE)]]


def cached_bytes(path: Path) -> int:
    return sum(cached_pages(path)) * PAGE


def check_cached(path: Path, expected: set[int]) -> None:
    """Fail where any other page of the file is cached, or more than a tenth of the expected ones are not.

    Pages too many are always a fault of ours. The kernel takes some back when it likes: on a busy machine with
    plenty of free memory it was seen to drop 0.3 % of them within a second.
    """
    cached = {number for number, there in enumerate(cached_pages(path)) if there}
    more = sorted(cached - expected)
    assert not more, f"{len(more)} pages more than the {len(expected)} expected: {more[:5]} …"
    assert len(cached) >= len(expected) * 9 // 10, f"{len(cached)} of {len(expected)} pages"


def check_cached_bytes(path: Path, expected: int) -> None:
    """The same by their number, once they had time to arrive and some more in which too many could."""
    deadline = time.monotonic() + 20
    while cached_bytes(path) < expected * 9 // 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert expected * 9 // 10 <= cached_bytes(path) <= expected


def evict(path: Path) -> None:
    """Drop the file from the page cache; the test is skipped where the file system cannot (a tmpfs)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        for _ in range(100):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if not cached_bytes(path):
                return
            time.sleep(0.01)  # A page that is being read cannot be dropped.
    finally:
        os.close(descriptor)
    pytest.skip("this file system keeps its pages; set --basetemp to a disk")


def pages_spanned(begin: int, end: int) -> set[int]:
    """The numbers of the pages that hold the bytes from ``begin`` to ``end``."""
    return set(range(begin // PAGE, -(-end // PAGE)))


def mappings(path: Path) -> list[tuple[int, str]]:
    """``(bytes, permissions)`` of each mapping of the file in this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *_, name = line.split(maxsplit=5)
        if name == str(path):
            begin, end = (int(part, 16) for part in span.split("-"))
            found.append((end - begin, permissions))
    return found


def mapped_bytes(path: Path) -> int:
    return sum(size for size, _ in mappings(path))


def smaps(path: Path, field: str) -> int:
    """Sum of one field of /proc/self/smaps over the mappings of the file, in bytes."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith(f"{field}:"):
            total += int(line.split()[1]) * 1024
    return total


def memory(kind: str) -> int:
    """``RssFile``, ``RssAnon``, ``VmRSS``, ``VmSize`` … of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(kind)


def descriptors() -> dict[str, str]:
    """Open descriptors, and what each leads to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one of this listing
    return found


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fail where the block leaves descriptors or threads behind that were not there before."""
    files, threads = Counter(descriptors().values()), set(threading.enumerate())
    yield
    left = _new_since(files, threads)
    if left:
        gc.collect()  # A cycle of an exception and its frames is not a leak.
        left = _new_since(files, threads)
    assert left == []


def _new_since(files: Counter[str], threads: set[threading.Thread]) -> list[object]:
    return [*(Counter(descriptors().values()) - files), *(set(threading.enumerate()) - threads)]


def run_child(
    source: str, *arguments: object, flags: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python source in a process of its own, without a core dump; what hangs is ended after three minutes."""
    return subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        env={**os.environ, "PYTHONPATH": str(TESTS), **variables},
    )


def output_of(source: str, *arguments: object) -> str:
    """What a child prints; its errors are the test's."""
    done = run_child(source, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
