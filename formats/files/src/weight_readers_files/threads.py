# SPDX-License-Identifier: Apache-2.0
"""Threads that share work, also where no more can be had."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

__all__ = ["Pool"]

_T = TypeVar("_T")


class Pool(ThreadPoolExecutor):
    """A ThreadPoolExecutor that does in the calling thread what it cannot hand to another.

    Python's own takes no more work once the main thread has ended, although other threads still run, and none where
    the system has no thread left: RuntimeError. `submit` then returns when the work is done, and never raises what the
    work raises. After `shutdown` it raises RuntimeError as any executor does.
    """

    _was_shut_down = False

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        task = _Task(partial(fn, *args, **kwargs))
        try:
            super().submit(task)
        except RuntimeError:
            if self._was_shut_down:
                raise
            # Where a thread did not start, others may have it in their queue all the same: it is done once.
            task()
        return task.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._was_shut_down = True
        super().shutdown(wait, cancel_futures=cancel_futures)


class _Task:
    """A call that is made once, whoever comes first."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._call = call
        self._claimed = threading.Lock()

    def __call__(self) -> None:
        if not self._claimed.acquire(blocking=False) or not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
