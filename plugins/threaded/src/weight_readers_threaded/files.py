# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files held open for positional reads by several threads, and whether they stayed the same."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from weight_readers import FileChangedError, TruncatedFileError, UnreadableFileError
from weight_readers_files import Range, State
from weight_readers_files.advice import Ahead

_IOV_BYTES = 0x7FFFF000
"""Linux transfers at most this much in one call."""

_AGAIN = "Load again once its writer has finished; replace files by rename, never in place"


class OpenFile:
    """One descriptor for all threads: ``preadv`` has no position to share.

    ``expected`` is the state in which the header was read. A file that was written to since is refused when it is
    opened and after every request; one that was replaced by rename goes on being read in its old form. With
    ``exact`` ranges no read pulls in anything else of the file, and they are asked for ahead of the reads.
    """

    def __init__(
        self, path: str, expected: State | None = None, *, direct: bool = False, exact: Iterable[Range] | None = None
    ) -> None:
        self.path = path
        self.direct = direct
        self.ahead = None if exact is None else Ahead(exact)
        self.fd = _open(path, os.O_DIRECT if direct else 0)
        # Also where the garbage collector ends the reading, and nobody is left to close it.
        self._close = weakref.finalize(self, os.close, self.fd)
        self._close.atexit = False
        try:
            self._state = expected or self._now()
            self.check()
        except BaseException:
            self.close()
            raise
        if exact is not None and hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # advice
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def _now(self) -> State:
        return State.of(os.fstat(self.fd))

    def check(self, tensor: str | None = None) -> None:
        """Raise FileChangedError if the file was written to since its header was read."""
        self._state.require(self._now(), path=self.path, tensor=tensor)

    def close(self) -> None:
        self._close()


def _open(path: str, flags: int) -> int:
    try:
        # Had a FIFO taken the file's place, an ordinary open would wait for its writer.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except FileNotFoundError as error:
        what = "the file was removed after its header was read"
        raise FileChangedError(what, path=path, found=error.strerror, fix=_AGAIN) from error
    except OSError as error:
        raise unreadable("cannot open the file", path, error) from error


class OpenFiles:
    """Opens each file at its first request and closes it after its last: requests come file by file."""

    def __init__(self, open_file: Callable[[str], OpenFile]) -> None:
        self._open_file = open_file
        self._left: Counter[str] = Counter()
        self._latest: str | None = None
        self._open: dict[str, OpenFile] = {}
        self._lock = threading.Lock()

    def begin(self, path: str | None) -> None:
        """The next request is for ``path``, which ends with `done`; None where there is none."""
        with self._lock:
            before, self._latest = self._latest, path
            if path is not None:
                self._left[path] += 1
            if before is not None:
                self._close_unused(before)

    def get(self, path: str) -> OpenFile:
        if (file := self._open.get(path)) is not None:  # open until this request is done
            return file
        with self._lock:
            if path not in self._open:
                self._open[path] = self._open_file(path)
            return self._open[path]

    def done(self, path: str) -> None:
        with self._lock:
            self._left[path] -= 1
            self._close_unused(path)

    def close(self) -> None:
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()

    def _close_unused(self, path: str) -> None:
        if path != self._latest and not self._left[path] and path in self._open:
            self._open.pop(path).close()


Read = Callable[[OpenFile, Sequence[memoryview], int], int]
"""Reads from an offset on into buffers, one after the other, as ``preadv`` does: returns how many bytes it filled,
which may be fewer than there is room for, and 0 at the end of the file."""


def buffered(file: OpenFile, buffers: Sequence[memoryview], offset: int) -> int:
    """Through the page cache, into place."""
    if file.ahead is not None:
        file.ahead.read_to(file.fd, offset + sum(map(len, buffers)))
    # Beyond its limit the kernel stops by itself, except that one single longer buffer is an error on some.
    return os.preadv(file.fd, [buffers[0][:_IOV_BYTES]] if len(buffers[0]) > _IOV_BYTES else buffers, offset)


def read_all(
    read: Read,
    file: OpenFile,
    buffers: Sequence[memoryview],
    offset: int,
    *,
    name: Callable[[int], str],
    proceed: Callable[[], None],
) -> None:
    """Fill ``buffers`` (none of them empty) from ``offset`` on, over short reads.

    ``proceed`` is asked before each of them and may raise. Python itself calls again after EINTR (PEP 475). Raises
    TruncatedFileError at an early end of the file, and UnreadableFileError with the system's reason; ``name`` is
    that of the tensor which the n-th buffer belongs to.
    """
    left = list(buffers)
    full = 0
    while left:
        proceed()
        try:
            count = read(file, left, offset)
        except OSError as error:
            raise unreadable("reading the file failed", file.path, error, tensor=name(full)) from error
        if count == 0:
            file.check(name(full))
            raise TruncatedFileError(
                "the file ends within a tensor",
                path=file.path,
                tensor=name(full),
                expected=f"{sum(map(len, left))} more bytes at {offset}",
                found="the end of the file",
            )
        offset += count
        full += _advance(left, count)


def read_each(
    read: Read,
    file: OpenFile,
    memory: memoryview,
    ranges: Iterable[Range],
    *,
    name: str,
    proceed: Callable[[], None],
) -> None:
    """Fill ``memory`` with ``ranges`` of one tensor, one after the other: what `read_all` does with each of them."""
    begin = 0
    for offset, length in ranges:
        proceed()
        part = memory[begin : begin + length]
        try:
            count = read(file, (part,), offset)
        except OSError as error:
            raise unreadable("reading the file failed", file.path, error, tensor=name) from error
        if count < length:
            read_all(read, file, [part[count:]], offset + count, name=lambda buffer: name, proceed=proceed)
        begin += length


def _advance(buffers: list[memoryview], count: int) -> int:
    """Drop the first ``count`` bytes of ``buffers``; returns how many buffers are full."""
    full = 0
    while full < len(buffers) and count >= len(buffers[full]):
        count -= len(buffers[full])
        full += 1
    del buffers[:full]
    if count:
        buffers[0] = buffers[0][count:]
    return full


def unreadable(what: str, path: str, error: OSError, *, tensor: str | None = None) -> UnreadableFileError:
    code = errno.errorcode.get(error.errno or 0, "")
    return UnreadableFileError(what, path=path, tensor=tensor, found=f"{error.strerror or error} {code}".strip())
