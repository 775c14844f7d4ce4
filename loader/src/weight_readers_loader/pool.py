# SPDX-License-Identifier: Apache-2.0
"""Threads that share work, also when the main one has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["Pool"]

_T = TypeVar("_T")


class Pool(ThreadPoolExecutor):
    """A ThreadPoolExecutor that works in the calling thread once the main one has ended: Python's takes nothing then.

    Readers and formats have `weight_readers_files.threads`, which the loader does not import (docs/decisions/0009).
    """

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        if threading.main_thread().is_alive():
            return super().submit(fn, *args, **kwargs)
        future: Future[_T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future
