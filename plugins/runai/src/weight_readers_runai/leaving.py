# SPDX-License-Identifier: Apache-2.0
"""Ending sessions of the native library, and the process, while a server does not answer.

Such a server holds `runai_end` for 30 to 60 seconds, and no setting of the library or its AWS client shortens that
(S3_TIMEOUT, S3_REQUEST_TIMEOUT_MS, S3_MAX_RETRIES, S3_LOW_SPEED_LIMIT, AWS_MAX_ATTEMPTS and AWS_RETRY_MODE were
tried). So a session is ended in a thread that nothing waits for. To run the destructors of C++ under the library's
threads crashes (signal 11); where a session still reads when the process ends, they are left out: after Python has
shut down as ever, atexit functions and flushes included, the process ends by ``_exit`` with its exit status.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import sys
import threading
from typing import Any

_lock = threading.RLock()
"""Reentrant: a generator that is dropped ends its session wherever the collector finds it."""
_reading: dict[int, tuple[int, object]] = {}
"""By ``id`` of the memory that a session writes to: its process, and the memory."""
_ending: set[int] = set()
"""By ``id`` of the memory: sessions that are being ended while they read."""
_watching = False
_is_arranged = False


def watch(memory: object) -> None:
    """Remember that a session writes to ``memory``, a container that is empty whenever it does not."""
    global _watching
    with _lock:
        _reading[id(memory)] = (os.getpid(), memory)
        if not _watching:
            _watching = True
            atexit.register(_at_exit)


def end(library: Any, handle: Any, memory: object, patience: float) -> bool:
    """End a session, waiting at most ``patience`` seconds for its reads; they end by themselves then.

    Returns whether they have ended: until then the library may write to ``memory``.
    """
    if memory and sys.is_finalizing():  # No thread starts any more.
        _leave_without_destructors(memory)
        return False
    if not memory:
        _end(library, handle, memory)
        return True
    over = threading.Lock()
    over.acquire()
    # Joined by nobody. A `Thread` takes a lock of Python's when it starts and when it ends, which the caller may hold
    # where it is the garbage collector.
    _ending.add(id(memory))
    _thread.start_new_thread(_end_apart, (library, handle, memory, over))
    return over.acquire(timeout=patience)


def is_ending() -> bool:
    """Whether a session of this process that was given up still holds the library."""
    return bool(_ending)


def _end_apart(library: Any, handle: Any, memory: object, over: threading.Lock) -> None:
    try:
        _end(library, handle, memory)
    finally:
        _ending.discard(id(memory))
        over.release()


def _end(library: Any, handle: Any, memory: object) -> None:
    library.runai_end(handle)
    with _lock:
        _reading.pop(id(memory), None)


def _at_exit() -> None:
    for pid, memory in list(_reading.values()):
        if memory and pid == os.getpid():  # In a forked child, the library's threads are not there.
            _leave_without_destructors(memory)


def _leave_without_destructors(memory: object) -> None:
    """``memory`` is written to until the end: it must outlive the interpreter."""
    global _is_arranged
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    libc = ctypes.CDLL(None)
    if _is_arranged or not hasattr(libc, "on_exit"):  # glibc has it, and the library's wheels are for glibc
        return
    _is_arranged = True
    # Functions are called from the last to the first: what C has buffered is written, then `_exit(status)`.
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)
