# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts: bytes read, cached pages, mappings, memory, descriptors. Never times.

Linux only (`/proc`, mincore(2)); elsewhere a test that counts is skipped.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = mmap.PAGESIZE


def needs_linux() -> None:
    """Skip where the kernel's counters are not to be had."""
    if sys.platform != "linux":
        pytest.skip("counted with /proc and mincore(2) of Linux")


def bytes_touched(path: str, action: Callable[[], object]) -> int:
    """How much of the file ``action`` brought into memory, by reads or by mappings.

    The larger of two counts: bytes that read calls of this process returned, and bytes of the file that the page
    cache holds afterwards and did not before. Skips where the file cannot be dropped from the page cache.
    """
    needs_linux()
    evict(path)
    before = _read_bytes()
    action()
    return max(_read_bytes() - before, cached_bytes(path))


def cached_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes of the file in the page cache, in whole pages."""
    return sum(cached_pages(path)) * PAGE


def cached_pages(path: str | os.PathLike[str]) -> list[bool]:
    """For each page of the file, whether the page cache holds it (mincore(2) of a mapping that nobody touches)."""
    size = os.path.getsize(path)
    pages = -(-size // PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    answer = ctypes.create_string_buffer(pages)
    try:
        if libc.mincore(address, size, answer):
            raise OSError(ctypes.get_errno(), "mincore failed")
    finally:
        libc.munmap(address, size)
    return [bool(byte & 1) for byte in answer.raw[:pages]]


def evict(path: str | os.PathLike[str]) -> None:
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


def _read_bytes() -> int:
    """Bytes that this process has got from read calls of any kind, direct I/O included."""
    text = Path("/proc/self/io").read_text()
    return int(text.partition("rchar:")[2].split()[0])


def mapped_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes of the file that are mapped into this process."""
    needs_linux()
    name, total = os.path.realpath(path), 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, mapped = line.split(maxsplit=5)
        if mapped == name:
            begin, end = (int(part, 16) for part in span.split("-"))
            total += end - begin
    return total


def anonymous_bytes() -> int:
    """Memory of this process that is no view of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


class Peak:
    """The most memory of its own that this process has more within the block than before, in bytes.

    Looked at by `look`, and a thousand times a second besides.
    """

    def __enter__(self) -> Peak:
        _give_back_what_is_free()
        self._before = self._highest = anonymous_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def nbytes(self) -> int:
        return self._highest - self._before

    def look(self) -> None:
        self._highest = max(self._highest, anonymous_bytes())

    def _look_on(self) -> None:
        while not self._over.wait(0.001):
            self.look()


def _give_back_what_is_free() -> None:
    """What the allocator keeps of earlier work would be taken again, and not show."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


@contextmanager
def nothing_left_open(*, but: str | None = None) -> Iterator[None]:
    """Fail where the block leaves descriptors or threads behind that were not there before.

    ``but``: the beginning of what descriptors may lead to, as ``socket:``.
    """
    needs_linux()
    files, threads = Counter(_descriptors(but)), set(threading.enumerate())
    yield
    left = _new_since(files, threads, but)
    if left:
        gc.collect()  # A cycle of an exception and its frames is not a leak.
        left = _new_since(files, threads, but)
    assert left == [], f"left open: {left}"


def _new_since(files: Counter[str], threads: set[threading.Thread], but: str | None) -> list[object]:
    return [*(Counter(_descriptors(but)) - files), *(set(threading.enumerate()) - threads)]


def _descriptors(but: str | None) -> list[str]:
    """What each open descriptor leads to, unless it begins with ``but``."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the one of this listing
    return [each for each in found if but is None or not each.startswith(but)]
