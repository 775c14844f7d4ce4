# SPDX-License-Identifier: Apache-2.0
"""Threads do not live on in a child process, and a lock that one of them held stays locked there for ever."""

from __future__ import annotations

import os


class Owner:
    """The process that began to read: only there are the threads and locks of it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        return os.getpid() != self._process

    def require(self) -> None:
        """Raise RuntimeError in a process that was forked in the midst of reading."""
        if self.is_elsewhere:
            raise RuntimeError(
                f"reading was begun in process {self._process}, and its threads are not in the fork {os.getpid()}: "
                "begin anew in the child"
            )
