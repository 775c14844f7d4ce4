# SPDX-License-Identifier: Apache-2.0
"""Whether a file is still the one whose header was read."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from weight_readers.errors import FileChangedError

_SETTLED_NS = 100_000_000


class State(NamedTuple):
    """What shows that a file was written to. Not the inode: some FUSE file systems number anew on each look-up."""

    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> State:
        return cls(status.st_size, status.st_mtime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether a change after this one is sure to show: the clocks of file systems tick some 100 times a second."""
        return time.time_ns() - self.mtime_ns > _SETTLED_NS

    def require(self, now: State, *, path: str, tensor: str | None = None) -> None:
        """Raise FileChangedError unless ``now`` is this state: the one in which the file's header was read."""
        if now != self:
            raise FileChangedError(
                "the file was changed while it was read",
                path=path,
                tensor=tensor,
                expected=f"{self.nbytes} bytes, unmodified",
                found=f"{now.nbytes} bytes, modified",
                fix="Load again once its writer has finished; replace files by rename, never in place",
            )


def states_of(paths: Sequence[str]) -> tuple[list[tuple[int, int]], dict[str, State]]:
    """``(device, inode)`` and state of each file that can be looked at; of others their reader says what is wrong."""
    looked_at: dict[str, os.stat_result] = {}
    for path in paths:
        with suppress(OSError, ValueError):
            looked_at[path] = os.stat(path)
    inodes = [(status.st_dev, status.st_ino) for status in looked_at.values()]
    return inodes, {path: State.of(status) for path, status in looked_at.items()}
