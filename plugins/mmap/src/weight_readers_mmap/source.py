# SPDX-License-Identifier: Apache-2.0
"""One open checkpoint file: mapped parts of it, plain reads from it, and whether it stayed the same."""

from __future__ import annotations

import mmap
import os
from types import TracebackType

from weight_readers import FileChangedError, TruncatedFileError, UnreadableFileError

# The kernel caps one request at the device's read-ahead window, so that a longer one would be cut off silently.
_ADVICE_BYTES = 128 * 1024
# Linux returns at most 0x7ffff000 bytes from one read.
_READ_BYTES = 1 << 30


class Source:
    """A file held open while its tensors are handed out.

    The open descriptor pins the inode: a file that is replaced by rename goes on being read in its old form,
    while one that is written in place shows in its size or time and is refused (``check``).
    """

    def __init__(self, path: str, *, readonly: bool) -> None:
        self.path = path
        self._access = mmap.ACCESS_READ if readonly else mmap.ACCESS_COPY
        self._readonly = readonly
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise UnreadableFileError("cannot open the file", path=path, found=error.strerror) from error
        self._identity = self._now()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def check(self, tensor: str | None = None) -> None:
        """Raise FileChangedError if the file was written to since it was opened."""
        if self._now() != self._identity:
            size, _ = self._identity
            raise FileChangedError(
                "the file was changed while it was read",
                path=self.path,
                tensor=tensor,
                expected=f"{size} bytes, unmodified",
                found=f"{self._now()[0]} bytes, modified",
                fix="Load again once its writer has finished; replace files by rename, never in place",
            )

    def map(self, offset: int, length: int) -> tuple[mmap.mmap, int]:
        """Map ``length > 0`` bytes at ``offset``; returns the mapping and where in it they begin."""
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapped = mmap.mmap(self._file.fileno(), offset - begin + length, access=self._access, offset=begin)
        except (OSError, ValueError) as error:
            raise UnreadableFileError(
                f"cannot map {length} bytes of the file",
                path=self.path,
                found=str(error),
                fix="Pass copy=True to read without a mapping"
                + ("" if self._readonly else ", or readonly=True where memory overcommit is off"),
            ) from error
        return mapped, offset - begin

    def read_into(self, buffer: memoryview, offset: int, *, tensor: str | None = None) -> None:
        """Fill ``buffer`` from ``offset`` on, over short reads. Raises TruncatedFileError at an early end."""
        done = 0
        while done < len(buffer):
            try:
                self._file.seek(offset + done)
                count = self._file.readinto(buffer[done : done + _READ_BYTES])
            except OSError as error:
                raise UnreadableFileError(
                    "reading the file failed", path=self.path, tensor=tensor, found=error.strerror
                ) from error
            if not count:
                raise TruncatedFileError(
                    "the file ends within a tensor",
                    path=self.path,
                    tensor=tensor,
                    expected=f"{len(buffer)} bytes at {offset}",
                    found=f"{done} bytes",
                )
            done += count

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


def will_need(mapped: mmap.mmap, offset: int, length: int) -> None:
    """Ask the kernel for exactly these bytes of the mapping.

    A page fault reads a whole read-ahead window around itself, megabytes of tensors that nobody asked for on
    some devices. Pages that are on their way already do not.
    """
    if not hasattr(mapped, "madvise"):
        return
    begin = offset - offset % mmap.PAGESIZE
    for start in range(begin, offset + length, _ADVICE_BYTES):
        mapped.madvise(mmap.MADV_WILLNEED, start, min(_ADVICE_BYTES, offset + length - start))
