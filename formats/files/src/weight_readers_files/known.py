# SPDX-License-Identifier: Apache-2.0
"""Headers that were read before, kept as long as their files are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from weight_readers.reader import CheckpointMeta, Files
from weight_readers_files.natural import natural_order
from weight_readers_files.state import State, states_of

Meta = TypeVar("Meta", bound=CheckpointMeta)


@dataclass(frozen=True)
class KnownHeaders(Generic[Meta]):
    """The headers of a set of files, and the state each file was in before its header was read.

    ``paths`` are as they were given: a file given twice, or one that is not there, has no state of its own.
    """

    paths: Sequence[str]
    inodes: Sequence[int]
    states: Mapping[str, State]
    meta: Meta


class HeaderCache(Generic[Meta]):
    """The headers of the files that were asked for last: a load asks twice, once to check and once to read.

    Threads may share one; the worst that can happen is that a header is read again.
    """

    def __init__(self, read_headers: Callable[[Sequence[str]], Meta]) -> None:
        self._read_headers = read_headers
        self._last: KnownHeaders[Meta] | None = None

    def read(self, files: Files) -> KnownHeaders[Meta]:
        """The headers of ``files`` as their format's parser gives them, parsed again where a file is another by now."""
        paths = natural_order(files)
        inodes, states = states_of(paths)
        last = self._last
        if last is not None and (last.paths, last.inodes, last.states) == (paths, inodes, states):
            return last
        self._last = known = KnownHeaders(paths, inodes, states, self._read_headers(paths))
        return known
