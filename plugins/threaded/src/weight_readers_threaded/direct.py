# SPDX-License-Identifier: Apache-2.0
"""Reads that bypass the page cache, through aligned scratch memory."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from weight_readers import TruncatedFileError, UnreadableFileError
from weight_readers_safetensors import State
from weight_readers_threaded.files import Name, OpenFile, read_scattered, unreadable
from weight_readers_threaded.memory import aligned, copy

ALIGNMENT = 4096
"""Of offset, length and memory: enough for every block device and file system that reports less."""

_SCRATCH_BYTES = 8 << 20
_CACHESTAT = 451
_MOSTLY_CACHED = 0.1

_log = logging.getLogger("weight_readers.threaded")
_scratch = threading.local()


def read(file: OpenFile, buffers: Sequence[memoryview], offset: int, name: Name) -> None:
    """Fill ``buffers`` from ``offset`` on, the way the file was opened."""
    if file.direct:
        _read_direct(file, buffers, offset, name)
    else:
        read_scattered(file, buffers, offset, name)


def open_file(path: str, expected: State | None, wanted: tuple[int, int], mode: str) -> OpenFile:
    """Open for ``direct_io`` ``off``, ``on`` or ``auto``; ``wanted`` bounds the bytes to come, ``(offset, end)``.

    ``on`` raises UnreadableFileError where the file system has no direct reads. ``auto`` takes them for what is
    not cached, and says so in the log where it cannot.
    """
    if mode == "off":
        return _checked(OpenFile(path, expected))
    if mode == "auto" and (cached := cached_fraction(path, *wanted)) is None:
        _log.warning("%s: buffered reads, because the kernel does not tell what is cached", path)
        return _checked(OpenFile(path, expected))
    if mode == "auto" and cached is not None and cached > _MOSTLY_CACHED:
        return _checked(OpenFile(path, expected))
    return _open_direct(path, expected, mode)


def _open_direct(path: str, expected: State | None, mode: str) -> OpenFile:
    try:
        return _checked(OpenFile(path, expected, direct=True))
    except UnreadableFileError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno != errno.EINVAL:
            raise
        if mode == "on":
            error.what = "the file system has no direct reads"
            error.fix = "Pass direct_io='off' or 'auto'"
            raise
    _log.warning("%s: buffered reads, because the file system has no direct ones", path)
    return _checked(OpenFile(path, expected))


def _checked(file: OpenFile) -> OpenFile:
    try:
        file.check()
    except BaseException:
        file.close()
        raise
    return file


def _read_direct(file: OpenFile, buffers: Sequence[memoryview], offset: int, name: Name) -> None:
    end = offset + sum(map(len, buffers))
    left = list(buffers)
    full = 0
    scratch = _own_scratch()
    while offset < end:
        begin = offset - offset % ALIGNMENT
        length = min(len(scratch), -(-(end - begin) // ALIGNMENT) * ALIGNMENT)
        try:
            count = os.preadv(file.fd, [scratch[:length]], begin)
        except OSError as error:
            raise unreadable("reading the file failed", file.path, error, tensor=name(full)) from error
        got = min(begin + count, end)
        if got <= offset:
            file.check(name(full))
            raise TruncatedFileError(
                "the file ends within a tensor",
                path=file.path,
                tensor=name(full),
                expected=f"{end - offset} more bytes at {offset}",
                found="the end of the file",
            )
        full += _spread(scratch[offset - begin : got - begin], left)
        offset = got


def _spread(source: memoryview, targets: list[memoryview]) -> int:
    """Copy ``source`` over the first of ``targets``, dropping what is full; returns how many that are."""
    full = 0
    while len(source):
        part = min(len(source), len(targets[0]))
        copy(targets[0][:part], source[:part])
        source = source[part:]
        if part == len(targets[0]):
            del targets[0]
            full += 1
        else:
            targets[0] = targets[0][part:]
    return full


def _own_scratch() -> memoryview:
    """One buffer per thread, gone with the thread."""
    if not hasattr(_scratch, "buffer"):
        _scratch.buffer = memoryview(aligned(_SCRATCH_BYTES))
    buffer: memoryview = _scratch.buffer
    return buffer


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")]


def cached_fraction(path: str, begin: int, end: int) -> float | None:
    """The fraction of the pages of ``begin:end`` that are in the page cache; None where the kernel does not tell.

    By cachestat(2), Linux 6.5 and later. Asking with RWF_NOWAIT reads would start read-ahead.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        wanted, stat = _Range(begin, end - begin), _Stat()
        libc: Any = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(_CACHESTAT, fd, ctypes.byref(wanted), ctypes.byref(stat), 0) != 0:
            return None
    finally:
        os.close(fd)
    page = os.sysconf("SC_PAGE_SIZE")
    pages = -(-end // page) - begin // page
    return min(1.0, stat.cached / pages) if pages else 1.0
