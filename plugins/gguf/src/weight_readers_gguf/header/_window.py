# SPDX-License-Identifier: Apache-2.0
"""The header's bytes, seen through a window that moves over the file: its size bounds the memory, not the header's.

No mapping: a file that is cut while it is read would kill the process rather than raise.
"""

from __future__ import annotations

import io
import os
import struct

from weight_readers.errors import CheckpointError, HeaderError, TruncatedFileError
from weight_readers_files import State
from weight_readers_files.content import DOWNLOAD_AGAIN
from weight_readers_gguf.header import _limits as limits

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

_FIRST_BYTES = 64 * 1024
_MOST_BYTES = 1024 * 1024


class Window:
    """Reads forward from ``position``; every method refuses to go past the end of the file or the limits.

    ``within`` says in words what is being read, for the message of the error.
    """

    def __init__(self, file: io.FileIO, path: str) -> None:
        self.path = path
        self.state = State.of(os.fstat(file.fileno()))
        self.position = 0
        self.within = "the header"
        self._file = file
        self._buffer = b""
        self._base = 0
        self._at_once = _FIRST_BYTES
        self._names_bytes = self._items = 0

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self.state.nbytes

    @property
    def left(self) -> int:
        """Bytes between the position and the end of the file."""
        return self.nbytes - self.position

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        """Read the numbers of ``layout``."""
        at = self._ensure(layout.size)
        self.position += layout.size
        return layout.unpack_from(self._buffer, at)

    def number(self, layout: struct.Struct = U64) -> int:
        """Read one number."""
        return self.take(layout)[0]

    def name(self) -> bytes:
        """Read the string of a key or a tensor's name."""
        length = self.number()
        if length > limits.MAX_NAME_BYTES:
            raise self.error(f"a name of {length} bytes", expected=f"at most {limits.MAX_NAME_BYTES} bytes")
        self._names_bytes += length
        if self._names_bytes > limits.MAX_NAMES_BYTES:
            raise self.error("too long keys and names", expected=f"at most {limits.MAX_NAMES_BYTES} bytes of them")
        at = self._ensure(length)
        self.position += length
        return self._buffer[at : at + length]

    def require(self, count: int) -> None:
        """Refuse to go on unless the file has ``count`` more bytes, and the header may have them."""
        if count > self.left:
            raise self._cut(count)
        if self.position + count > limits.MAX_HEADER_BYTES:
            raise self.error("too many bytes", expected=f"a header of at most {limits.MAX_HEADER_BYTES} bytes")

    def skip(self, count: int) -> None:
        """Move on by ``count`` bytes, which need not be read."""
        self.require(count)
        self.position += count

    def skip_strings(self, count: int) -> None:
        """Move on over ``count`` strings. Their lengths are read one after the other, for they depend on each other."""
        unpack = U64.unpack_from
        while count:
            start = at = self._ensure(8)
            buffer, done = self._buffer, 0
            try:
                for done in range(count):  # noqa: B007 - its last value is the number of strings before the fault
                    at += 8 + unpack(buffer, at)[0]
                count = 0
            except (struct.error, OverflowError):
                # The next string begins beyond the window, if not beyond the file.
                count -= done
            self.skip(at - start)

    def count_items(self, count: int, least_bytes: int, *, cost: int = 1) -> None:
        """Refuse ``count`` items of at least that many bytes each where the file or the limit has no room for them."""
        self._items += count * cost
        self.require(count * least_bytes)
        if self._items > limits.MAX_ITEMS:
            raise self.error("too many items in arrays", expected=f"at most {limits.MAX_ITEMS}")

    def copy(self, begin: int, end: int) -> bytes:
        """The bytes from ``begin`` to ``end``, which were passed already."""
        if begin >= self._base and end <= self._base + len(self._buffer):
            return self._buffer[begin - self._base : end - self._base]
        return self._read(begin, end - begin)

    def error(self, what: str, *, expected: str | None = None, found: str | None = None) -> HeaderError:
        return HeaderError(f"{what} in {self.within}", path=self.path, expected=expected, found=found)

    def _ensure(self, count: int) -> int:
        """Where in the buffer the position is, once it holds ``count`` bytes from there on."""
        at = self.position - self._base
        if at >= 0 and at + count <= len(self._buffer):
            return at
        self.require(count)
        self._buffer, self._base = self._read(self.position, count, more=self._at_once), self.position
        self._at_once = min(2 * self._at_once, _MOST_BYTES)
        return 0

    def _read(self, begin: int, count: int, *, more: int = 0) -> bytes:
        """Read ``count`` bytes from ``begin``, or up to ``more`` of them where the file has them."""
        wanted, data = min(max(count, more), self.nbytes - begin), bytearray()
        self._file.seek(begin)
        while len(data) < wanted and (part := self._file.read(wanted - len(data))):
            data += part
        if len(data) < wanted:
            self.require_unchanged()
            raise self._cut(count)
        return bytes(data)

    def require_unchanged(self) -> None:
        """Raise FileChangedError if the file was written to since the window was opened."""
        self.state.require(State.of(os.fstat(self._file.fileno())), path=self.path)

    def _cut(self, count: int) -> CheckpointError:
        return TruncatedFileError(
            f"the file ends inside its header, in {self.within}: it is cut, or a length in it is damaged",
            path=self.path,
            expected=f"at least {self.position + count} bytes",
            found=f"{self.nbytes} bytes",
            fix=DOWNLOAD_AGAIN,
        )
