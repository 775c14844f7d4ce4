# SPDX-License-Identifier: Apache-2.0
"""Headers that were read before, kept as long as their files are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from weight_readers.reader import CheckpointMeta, Files
from weight_readers_files.natural import natural_order
from weight_readers_files.state import State, states_of

Meta = TypeVar("Meta", bound=CheckpointMeta)


@dataclass(frozen=True)
class KnownHeaders(Generic[Meta]):
    """The headers of a set of files, and the state each file was in before its header was read."""

    inodes: Sequence[tuple[int, int]]
    states: Mapping[str, State]
    meta: Meta


_Key = tuple[Any, ...]
"""The parser, the paths, and what shows that the files are the same."""

_kept: WeakValueDictionary[_Key, KnownHeaders[Any]] = WeakValueDictionary()
"""What some cache holds, of those that share."""


class HeaderCache(Generic[Meta]):
    """The headers of the files that were asked for last: a load asks twice, once to check and once to read.

    What caches of one ``shared_as`` have read they have from one another, for as long as one of them keeps it: the
    reader that a load is done by is often not the one that checked the files. It names the parser and its settings;
    None shares nothing. Files that were written to just now are read by each. Threads may share a cache; the worst
    that can happen is that a header is read again.
    """

    def __init__(self, read_headers: Callable[[Sequence[str]], Meta], *, shared_as: str | None = None) -> None:
        self._read_headers = read_headers
        self._shared_as = shared_as
        self._last: tuple[_Key, KnownHeaders[Meta]] | None = None

    def read(self, files: Files) -> KnownHeaders[Meta]:
        """The headers of ``files`` as their format's parser gives them, parsed again where a file is another by now."""
        paths = natural_order(files)
        inodes, states = states_of(paths)
        key = (self._shared_as, tuple(paths), tuple(inodes), tuple(states.items()))
        last = self._last  # once: another thread may put another in its place
        if last is not None and last[0] == key:
            return last[1]
        known: KnownHeaders[Meta] | None = None if self._shared_as is None else _kept.get(key)
        if known is None:
            known = KnownHeaders(inodes, states, self._read_headers(paths))
            if self._shared_as is not None and all(state.is_settled for state in states.values()):
                _kept[key] = known
        self._last = key, known
        return known
