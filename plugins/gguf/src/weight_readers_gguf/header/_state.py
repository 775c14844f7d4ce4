# SPDX-License-Identifier: Apache-2.0
"""What shows that a file was written to since its header was read."""

from __future__ import annotations

import os
from typing import NamedTuple

from weight_readers.errors import FileChangedError


class State(NamedTuple):
    """Size and time of change. Not the inode: some FUSE file systems number anew on each look-up."""

    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> State:
        return cls(status.st_size, status.st_mtime_ns)

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
