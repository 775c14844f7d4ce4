# SPDX-License-Identifier: Apache-2.0
"""What a process read last, where another can see it after the first one died."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

_BYTES = 4 << 20  # taken page by page as it fills


class Note:
    """Memory that a parent and its child share. The child appends each file it opens; the parent reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BYTES)

    def append(self, path: str) -> None:
        """Note a file and its size. What no longer fits is not noted."""
        try:
            nbytes = os.stat(path).st_size
        except OSError:
            return
        record = b"%d\0%s\0" % (nbytes, os.fsencode(path))
        if self._memory.tell() + len(record) < _BYTES:
            self._memory.write(record)

    def files(self) -> list[tuple[str, int]]:
        """Every file noted, with its size then."""
        fields = self._memory[:_BYTES].rstrip(b"\0").split(b"\0")
        return [(os.fsdecode(path), int(nbytes)) for nbytes, path in zip(fields[::2], fields[1::2], strict=False)]

    def shrunk(self) -> Iterator[str]:
        """The files that are shorter now than they were, in words."""
        for path, nbytes in self.files():
            now = os.path.getsize(path) if os.path.exists(path) else None
            if now is not None and now < nbytes:
                yield f"{path} (it had {nbytes} bytes and has {now} now)"
