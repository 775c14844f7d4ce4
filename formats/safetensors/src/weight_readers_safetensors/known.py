# SPDX-License-Identifier: Apache-2.0
"""Headers that were read before, kept as long as their files are the same."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from weight_readers.errors import FileChangedError
from weight_readers.reader import CheckpointMeta, Files
from weight_readers_safetensors.shards import natural_order, read_headers


class State(NamedTuple):
    """What shows that a file was written to. Not the inode: some FUSE file systems number anew on each look-up."""

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


@dataclass(frozen=True)
class KnownHeaders:
    """The headers of a set of files, and the state each file was in before its header was read."""

    inodes: Sequence[int]
    states: Mapping[str, State]
    meta: CheckpointMeta


class HeaderCache:
    """The headers of the files that were asked for last: a load asks twice, once to check and once to read.

    Threads may share one; the worst that can happen is that a header is read again.
    """

    def __init__(self) -> None:
        self._last: KnownHeaders | None = None

    def read(self, files: Files) -> KnownHeaders:
        """The headers of ``files`` as `read_headers` gives them, read again only where a file is another by now."""
        paths = natural_order(files)
        inodes, states = _states(paths)
        last = self._last
        if last is not None and (last.inodes, last.states) == (inodes, states):
            return last
        self._last = known = KnownHeaders(inodes, states, read_headers(paths))
        return known


def _states(paths: Sequence[str]) -> tuple[list[int], dict[str, State]]:
    """Inode and state of each file that can be looked at; whoever reads the headers says what is wrong with others."""
    looked_at: dict[str, os.stat_result] = {}
    for path in paths:
        with suppress(OSError, ValueError):
            looked_at[path] = os.stat(path)
    inodes = [status.st_ino for status in looked_at.values()]
    return inodes, {path: State.of(status) for path, status in looked_at.items()}
