# SPDX-License-Identifier: Apache-2.0
"""Reads that bypass the page cache, through aligned scratch memory, and which files are read so."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence

from weight_readers import UnreadableFileError
from weight_readers_files import FilePlan, State
from weight_readers_files.memory import copy, private
from weight_readers_files.residency import cached_fraction
from weight_readers_threaded.decisions import NO_DIRECT_READS, SHARE, UNKNOWN, Decided, said
from weight_readers_threaded.files import OpenFile, buffered, unreadable

ALIGNMENT = 4096
"""Of offset, length and memory: enough for every block device and file system that reports less."""

SCRATCH_BYTES = 4 << 20
_HARDLY_CACHED = 0.1

_log = logging.getLogger("weight_readers.threaded")
_scratch = threading.local()


class Opener:
    """Opens files for ``direct_io`` ``off``, ``on`` or ``auto``, as ``plans`` want them read.

    Of a file that is wanted in part no more is read than that: the kernel's read-ahead, which takes megabytes behind
    each range, is turned off. ``on`` raises UnreadableFileError where the file system has no direct reads. ``auto``
    takes them for what is not cached, and says so in the log, once, where it cannot. ``decisions`` are what it decided
    for the files that were opened; what was asked for is no decision. One thread opens at a time.
    """

    def __init__(self, mode: str, plans: Sequence[FilePlan]) -> None:
        self._mode = mode
        self._plans = {plan.path: plan for plan in plans}
        self._warned = False
        self._decided: dict[str, Decided] = {}
        self.decisions: tuple[str, ...] = ()

    def open(self, path: str) -> OpenFile:
        if self._mode == "auto":
            return self._by_what_is_cached(path)
        return self._direct(path) if self._mode == "on" else self._buffered(path)

    def _buffered(self, path: str) -> OpenFile:
        plan = self._plans[path]
        return OpenFile(path, plan.state, exact=plan.pages() if plan.partial else None)

    def _by_what_is_cached(self, path: str) -> OpenFile:
        wanted = self._plans[path].wanted
        begin, end = wanted[0].begin, max(each.end for each in wanted)
        cached = cached_fraction(path, begin, end)
        if cached is None:
            self._warn(path, "the kernel does not tell what is cached")
        is_cold = cached is not None and cached <= _HARDLY_CACHED
        file = self._direct(path) if is_cold else self._buffered(path)
        fact = UNKNOWN if cached is None else NO_DIRECT_READS if is_cold and not file.direct else SHARE
        self._decided[path] = Decided(direct=file.direct, fact=fact, nbytes=end - begin, cached=cached or 0.0)
        self.decisions = said(self._decided.values())
        return file

    def _direct(self, path: str) -> OpenFile:
        try:
            return open_direct(path, self._plans[path].state)
        except UnreadableFileError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EINVAL:
                raise
            if self._mode == "on":
                what, fix = "the file system has no direct reads", "Pass direct_io='off' or 'auto'"
                raise UnreadableFileError(what, path=path, found=error.found, fix=fix) from cause
        self._warn(path, "the file system has no direct ones")
        return self._buffered(path)

    def _warn(self, path: str, why: str) -> None:
        if not self._warned:
            _log.warning("buffered reads, because %s: %s", why, path)
        self._warned = True


def open_direct(path: str, expected: State | None) -> OpenFile:
    """Open for direct reads. Raises UnreadableFileError, from an EINVAL, where there are none.

    Some file systems take the flag and refuse the read: one is made.
    """
    file = OpenFile(path, expected, direct=True)
    try:
        os.preadv(file.fd, [_own_scratch()[:ALIGNMENT]], 0)
    except OSError as error:
        file.close()
        raise unreadable("reading the file failed", path, error) from error
    return file


def read(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
    """Read the way the file was opened."""
    return _unaligned(file, buffers, offset) if file.direct else buffered(file, buffers, offset)


def _unaligned(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
    begin = offset - offset % ALIGNMENT
    end = offset + sum(map(len, buffers))
    scratch = _own_scratch()
    length = min(len(scratch), -(-(end - begin) // ALIGNMENT) * ALIGNMENT)
    count = os.preadv(file.fd, [scratch[:length]], begin)
    return _spread(scratch[offset - begin : min(begin + count, end) - begin], buffers)


def _spread(source: memoryview, targets: Sequence[memoryview]) -> int:
    """Copy ``source`` over ``targets``; returns how many bytes that were."""
    done = 0
    for target in targets:
        part = source[done : done + len(target)]
        copy(target[: len(part)], part)
        done += len(part)
    return done


def _own_scratch() -> memoryview:
    """One buffer per thread, gone with the thread."""
    if not hasattr(_scratch, "buffer"):
        _scratch.buffer = memoryview(private(SCRATCH_BYTES))
    buffer: memoryview = _scratch.buffer
    return buffer
