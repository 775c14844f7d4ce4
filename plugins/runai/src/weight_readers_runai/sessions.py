# SPDX-License-Identifier: Apache-2.0
"""Sessions of the native library with a store: none is ended while another one streams.

Run:ai 0.17.1 takes down its client of the store with any session that ends: the others are told that the library was
shut down, and the heap was corrupted (two threads that read from S3 were enough).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_lock = threading.RLock()
"""Reentrant: a generator that is dropped ends its session wherever the collector finds it."""
_open: set[int] = set()
_ended: list[Callable[[], bool]] = []


def begin(start: Callable[[], object], session: object) -> object:
    """What ``start`` returns, once no session is being ended."""
    with _lock:
        handle = start()
        _open.add(id(session))
        return handle


def end(session: object, finish: Callable[[], bool], *, at_rest: bool) -> bool:
    """Have the session ended by ``finish``, now or together with the last one that is open.

    Returns whether its reads have ended; ``at_rest`` says whether they have already.
    """
    with _lock:
        _open.discard(id(session))
        _ended.append(finish)
        if _open:
            return at_rest
        last = [each() for each in _ended][-1]
        _ended.clear()
        return last
