# SPDX-License-Identifier: Apache-2.0
"""Bring the bytes of tensors into memory before they are handed on: a view of a mapped file has none of its own."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections import deque
from queue import SimpleQueue
from types import TracebackType

import torch

from weight_readers_loader.environment.libc import libc
from weight_readers_loader.environment.limits import available_cpus, local_ranks
from weight_readers_loader.raw import as_bytes

MAX_THREADS = 4
PIECE_BYTES = 4 << 20
_MADV_POPULATE_READ = 22  # Linux 5.14. Python's mmap has no name for it.
_UNREADABLE = (errno.EFAULT, getattr(errno, "EHWPOISON", 133))

Piece = tuple[int, int]
"""Address and length of whole pages."""


class Toucher:
    """Has every page of a tensor in memory, those of a large one by several threads.

    To wait for storage, and to find memory and clear it, is what takes the time: threads share it. The kernel is asked
    to bring pages in (``MADV_POPULATE_READ``), and says which it cannot: to touch one whose file was cut, or whose
    storage fails, would end the process with SIGBUS. Where it does not know how to, a byte of each page is read. The
    threads end with the ``with`` block.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = thread_count() if threads is None else threads
        self._populates = sys.platform == "linux"
        self._work: SimpleQueue[deque[Piece] | None] = SimpleQueue()
        self._done: SimpleQueue[int] = SimpleQueue()
        self._helpers: list[threading.Thread] = []

    def __enter__(self) -> Toucher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._helpers:
            self._work.put(None)
        for helper in self._helpers:
            if helper.ident is not None:  # else Ctrl-C was heard while it began: it ends by itself
                helper.join()

    def touch(self, tensor: torch.Tensor) -> None:
        """Raises OSError where a page cannot be read. Rows with gaps are left alone."""
        if tensor.device.type != "cpu" or not tensor.numel() or not tensor.is_contiguous():
            return
        if not (self._populates and self._populated(tensor)):
            raw = as_bytes(tensor)
            raw[:: mmap.PAGESIZE].sum() + raw[-1]

    def _populated(self, tensor: torch.Tensor) -> bool:
        begin = tensor.data_ptr()
        begin, end = begin - begin % mmap.PAGESIZE, begin + tensor.nbytes
        pieces = deque((at, min(PIECE_BYTES, end - at)) for at in range(begin, end, PIECE_BYTES))
        fault = self._shared(pieces) if len(pieces) > 1 and self._threads > 1 else _populate_all(pieces)
        if fault in _UNREADABLE:
            raise OSError(fault, os.strerror(fault))
        self._populates = fault != errno.EINVAL
        return fault == 0

    def _shared(self, pieces: deque[Piece]) -> int:
        try:
            helping = self._call(min(self._threads, len(pieces)) - 1, pieces)
            faults = {_populate_all(pieces), *(self._done.get() for _ in range(helping))}
        except BaseException:  # Ctrl-C: the others end with the piece that they are at
            pieces.clear()
            raise
        return next((fault for fault in faults if fault in _UNREADABLE), max(faults))

    def _call(self, count: int, pieces: deque[Piece]) -> int:
        while len(self._helpers) < count:
            helper = threading.Thread(target=self._help, name=f"touch-{len(self._helpers)}", daemon=True)
            self._helpers.append(helper)
            try:
                helper.start()
            except RuntimeError as error:
                # Ctrl-C while Python itself waits for the thread to begin: its condition then releases a lock twice.
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                # None can be had: the system has no more, or the main one has ended.
                self._helpers.pop()
                count = len(self._helpers)
        for _ in range(count):
            self._work.put(pieces)
        return count

    def _help(self) -> None:
        while (pieces := self._work.get()) is not None:
            try:
                fault = _populate_all(pieces)
            except BaseException:  # whatever it is: somebody waits for an answer, and reads the pages then
                fault = errno.ENOMEM
            self._done.put(fault)


def thread_count() -> int:
    """The CPUs that are this process's, shared with the other ranks of the machine, and `MAX_THREADS` at most."""
    return max(1, min(MAX_THREADS, available_cpus() // (local_ranks() or 1)))


def _populate_all(pieces: deque[Piece]) -> int:
    """Take pieces until there are none; returns what errno one ended with, 0 where all are in memory."""
    while True:
        try:
            address, length = pieces.popleft()
        except IndexError:
            return 0
        if libc().madvise(address, length, _MADV_POPULATE_READ):
            pieces.clear()
            return ctypes.get_errno()
