# SPDX-License-Identifier: Apache-2.0
"""One open checkpoint file: mapped parts of it, plain reads from it, and whether it stayed the same."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from weight_readers import FileChangedError, TruncatedFileError, UnreadableFileError
from weight_readers_files import Range, State
from weight_readers_files.advice import will_need
from weight_readers_files.mapping import map_private

PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
# Linux returns at most 0x7ffff000 bytes from one read.
_READ_BYTES = 1 << 30
_AGAIN = "Load again once its writer has finished; replace files by rename, never in place"

ReadAt = Callable[[memoryview, int], int]
"""Reads at an offset into a buffer, as much as it likes; returns the count, 0 at the end of the file."""


class Source:
    """A file held open while its tensors are handed out.

    The open descriptor pins the inode: a file that is replaced by rename goes on being read in its old form,
    while one that is written in place shows in its size or time and is refused (`check`). ``expected`` is the
    state in which its header was read; a file that is another by now is refused on opening. With ``exact`` no
    read pulls in more of the file than it asks for.
    """

    def __init__(
        self, path: str, expected: State | None = None, *, readonly: bool = False, exact: bool = False
    ) -> None:
        self.path = path
        self._readonly = readonly
        self._descriptor = _open(path)
        try:
            self._state = expected or self._now()
            self.check()
        except BaseException:
            os.close(self._descriptor)
            raise
        if exact and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def check(self, tensor: str | None = None) -> None:
        """Raise FileChangedError if the file was written to since its header was read."""
        self._state.require(self._now(), path=self.path, tensor=tensor)

    def map(self, begin: int, end: int, *, tensor: str | None = None) -> tuple[memoryview, int]:
        """Map the bytes from ``begin`` to ``end > begin``; returns the mapping and the file offset it begins at."""
        base = begin - begin % PAGE_BYTES
        try:
            return map_private(self._descriptor, base, end - base, readonly=self._readonly), base
        except OSError as error:
            raise UnreadableFileError(
                f"cannot map {end - begin} bytes of the file",
                path=self.path,
                tensor=tensor,
                found=error.strerror,
                fix=_mapping_fix(error, readonly=self._readonly),
            ) from error

    def will_need(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ask the kernel for these ``(offset, length)`` ranges, rounded to pages, without waiting for them.

        A page fault reads a whole read-ahead window around itself, megabytes that nobody asked for on some
        devices. Pages that are on their way already do not fault.
        """
        will_need(self._descriptor, ranges)

    def read_into(self, buffer: memoryview, offset: int, *, tensor: str | None = None) -> None:
        """Fill ``buffer`` from ``offset`` on. Raises TruncatedFileError at an early end of the file."""
        self.read_each(buffer, ((offset, len(buffer)),), tensor=tensor)

    def read_each(self, buffer: memoryview, ranges: Iterable[Range], *, tensor: str | None = None) -> None:
        """Fill ``buffer`` with ``ranges``, one after the other, as `read_into` does with one."""
        descriptor, begin = self._descriptor, 0
        try:
            for offset, length in ranges:
                part = buffer[begin : begin + length]
                # There may be hundreds of thousands of them. Nearly every one is read in full by one call.
                if length > _READ_BYTES or os.preadv(descriptor, (part,), offset) != length:
                    self._fill(part, offset, tensor)
                begin += length
        except OSError as error:
            raise UnreadableFileError(
                "reading the file failed", path=self.path, tensor=tensor, found=error.strerror
            ) from error

    def _fill(self, buffer: memoryview, offset: int, tensor: str | None) -> None:
        count = fill(self._read_at, buffer, offset)
        if count < len(buffer):
            self.check(tensor)
            raise TruncatedFileError(
                "the file ends within a tensor",
                path=self.path,
                tensor=tensor,
                expected=f"{len(buffer)} bytes at {offset}",
                found=f"{count} bytes",
            )

    def _read_at(self, buffer: memoryview, offset: int) -> int:
        return os.preadv(self._descriptor, [buffer], offset)

    def _now(self) -> State:
        return State.of(os.fstat(self._descriptor))


def fill(read_at: ReadAt, buffer: memoryview, offset: int, *, at_once: int = _READ_BYTES) -> int:
    """Fill ``buffer`` over short reads of at most ``at_once`` bytes; the count is short only at the end of the file."""
    done = 0
    while done < len(buffer):
        count = read_at(buffer[done : done + at_once], offset + done)
        if not count:
            break
        done += count
    return done


def _open(path: str) -> int:
    try:
        # Had a FIFO taken the file's place, an ordinary open would wait for its writer.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        what = "the file was removed after its header was read"
        raise FileChangedError(what, path=path, found=error.strerror, fix=_AGAIN) from error
    except OSError as error:
        raise UnreadableFileError("cannot open the file", path=path, found=error.strerror) from error


def _mapping_fix(error: OSError, *, readonly: bool) -> str:
    if error.errno != errno.ENOMEM:
        return "Pass copy=True: this file system does not map files"
    strict = "" if readonly else ", readonly=True where memory overcommit is off (vm.overcommit_memory)"
    return (
        "Raise the limit of address space (ulimit -v) or read the tensor in slices"
        f"{strict}, copy=True where the process has run out of mappings (vm.max_map_count)"
    )
