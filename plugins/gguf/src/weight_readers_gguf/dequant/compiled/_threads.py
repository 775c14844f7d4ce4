# SPDX-License-Identifier: Apache-2.0
"""A range of blocks shared out over threads; the caller is one of them, so that a busy pool delays nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

import torch

from weight_readers_files.cpus import available_cpus

_pools: dict[int, ThreadPoolExecutor] = {}


def share_out(total: int, step: int, worker: Callable[[], Callable[[int, int], None]]) -> None:
    """Call ``worker()`` in each thread, and what it returns with ``(start, stop)`` until all of ``total`` is done.

    As many threads as torch would use, and no more than this process has CPUs or there are steps. What a thread raises
    is raised here, once no thread works any more.
    """
    threads = min(torch.get_num_threads(), available_cpus(), -(-total // step))
    starts = _Starts(total, step)

    def loop() -> None:
        # The mode of the caller's thread is not that of others, and tensors made in that one are writable in no other.
        with torch.inference_mode():
            work = worker()
            while (start := starts.next()) is not None:
                work(start, min(start + step, total))

    helpers = _helpers(loop, threads - 1)
    try:
        loop()
    except BaseException:
        starts.end()
        raise
    finally:
        _settle(helpers)


class _Starts:
    """Hands each start of a range to one thread."""

    def __init__(self, total: int, step: int) -> None:
        self._left = iter(range(0, total, step))
        self._lock = threading.Lock()

    def next(self) -> int | None:
        with self._lock:
            return next(self._left, None)

    def end(self) -> None:
        with self._lock:
            self._left = iter(range(0))


def _helpers(loop: Callable[[], None], count: int) -> list[Future[None]]:
    """``loop`` in other threads, as many as can be had: none when the interpreter ends (``atexit``)."""
    helpers: list[Future[None]] = []
    # RuntimeError: no new threads. What the pool took all the same finds its future cancelled, or is waited for.
    with suppress(RuntimeError):
        while len(helpers) < count:
            helpers.append(Future())
            _pool().submit(_run, helpers[-1], loop)
    return helpers


def _run(future: Future[None], loop: Callable[[], None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        loop()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def _settle(helpers: list[Future[None]]) -> None:
    """Wait for those that began; those that did not have nothing left to do."""
    began = [each for each in helpers if not each.cancel()]
    for each in wait(began).done:
        each.result()


def _pool() -> ThreadPoolExecutor:
    """That of this process: the threads of a parent do not live on in what it forks."""
    process = os.getpid()
    found = _pools.get(process)
    if found is None:
        found = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="dequantize")
        found = _pools.setdefault(process, found)
    return found
