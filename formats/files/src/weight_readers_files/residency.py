# SPDX-License-Identifier: Apache-2.0
"""How much of a file the page cache holds."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_CACHESTAT = 451


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")]


def cached_fraction(path: str, begin: int, end: int) -> float | None:
    """The fraction of the pages of ``begin:end`` that are in the page cache; None where the kernel does not tell.

    By cachestat(2), Linux 6.5 and later. Asking with RWF_NOWAIT reads would start read-ahead.
    """
    if begin >= end:
        return 1.0
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
    pages: int = -(-end // page) - begin // page
    return min(1.0, int(stat.cached) / pages)
