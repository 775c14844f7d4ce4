# SPDX-License-Identifier: Apache-2.0
"""The copies of one version of a stored file: several, where several processes want different parts at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from weight_readers import FetchesRanges, FileVersion
from weight_readers_loader.copies import spans
from weight_readers_loader.copies.cache import refused_by_disk, require_room
from weight_readers_loader.copies.slot import Arrived, Slot
from weight_readers_loader.copies.spans import Span

_PATIENCE = 5.0

_log = logging.getLogger("weight_readers.copies")


class Pool:
    """Copies in ``folder`` of the file at ``uri``."""

    def __init__(self, fetcher: FetchesRanges, uri: str, version: FileVersion, folder: Path) -> None:
        self._fetcher = fetcher
        self._uri = uri
        self._version = version
        self._folder = folder

    @contextmanager
    def holding(self, wanted: Sequence[Span], arrived: Arrived) -> Iterator[str]:
        """The path of a copy that has ``wanted``, fetched where it has not. Nobody writes to it within the block."""
        wanted = spans.rounded(wanted, self._version.nbytes)
        with refused_by_disk(self._folder, self._uri):
            slot = self._slot(wanted, arrived)
        try:
            yield str(slot.path)
        finally:
            slot.release()

    def _slot(self, wanted: Sequence[Span], arrived: Arrived) -> Slot:
        """A copy that has it all, without waiting for anybody; else one that gets it while others wait."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (found := self._ready(wanted)) is not None:
            return found
        with self._fetching():
            if (found := self._ready(wanted)) is not None:
                return found
            slot = self._least_lacking(wanted)
            try:
                require_room(self._folder, spans.total(slot.lacks(wanted)), self._uri)
                for other in self._slots():
                    slot.adopt(other, wanted)
                _log.info("fetching %d bytes of %s", spans.total(slot.lacks(wanted)), self._uri)
                slot.fetch(self._fetcher, wanted, arrived)
            except BaseException:
                slot.release()
                raise
            return slot

    def _ready(self, wanted: Sequence[Span]) -> Slot | None:
        slots = self._slots()
        whole = next((slot for slot in slots if slot.is_whole), None)
        if whole is not None:
            return whole
        for slot in slots:
            if not slot.lacks(wanted) and slot.take():
                if not slot.lacks(wanted):
                    return slot
                slot.release()
        return None

    def _least_lacking(self, wanted: Sequence[Span]) -> Slot:
        """The free copy that lacks least, taken; a new one where all are in use."""
        slots = self._slots()
        for slot in sorted(slots, key=lambda each: spans.total(each.lacks(wanted))):
            if slot.take():
                return slot
        number = next(n for n in range(len(slots) + 1) if not (self._folder / str(n)).exists())
        slot = self._at(number)
        if not slot.take():
            raise OSError(None, "a new copy is in use", str(slot.path))
        return slot

    def _slots(self) -> list[Slot]:
        numbers = sorted(int(each.name) for each in self._folder.iterdir() if each.name.isdigit())
        return [self._at(number) for number in numbers]

    def _at(self, number: int) -> Slot:
        folder = self._folder / str(number)
        folder.mkdir(mode=0o700, exist_ok=True)
        return Slot(folder, self._uri, self._version)

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        """One at a time fetches: the ranks of a node want the same file, and it is fetched once."""
        lock = FileLock(self._folder / "fetching.lock", thread_local=False)
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            _log.warning("another process fetches %s; waiting for it", self._uri)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
