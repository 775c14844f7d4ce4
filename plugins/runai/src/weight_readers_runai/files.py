# SPDX-License-Identifier: Apache-2.0
"""Files of this machine as the streamer reads them: through the page cache or past it, and watched meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from weight_readers import CheckpointError
from weight_readers_files import FilePlan
from weight_readers_files.residency import cached_fraction
from weight_readers_runai import failures
from weight_readers_runai.options import DEFAULT_MEMORY_LIMIT, Options
from weight_readers_runai.streamer import Streamer
from weight_readers_runai.window import PAGE_BYTES

BUFFERED = "sync_buffered"
DIRECT = "io_uring_direct,libaio_direct"
"""Strategies of the native library. Its own default tries the direct ones first and re-reads what is cached."""

_HARDLY_CACHED = 0.1

_log = logging.getLogger("weight_readers.runai")


class LocalFiles:
    """What is wanted of local files. Where they are not in the page cache they are read past it (``auto``).

    To read past it what it holds would be to fetch it from storage again, and to read through it what it does not
    hold costs a copy of every byte. The limit between the two is `_HARDLY_CACHED`.
    """

    guarded = False
    window = DEFAULT_MEMORY_LIMIT
    gap = PAGE_BYTES - 1
    """Bytes between two tensors that are read along: no page could be left out."""

    def __init__(self, plans: Sequence[FilePlan], options: Options, *, into_targets: bool = False) -> None:
        self._options = options
        self.congruent, self.decisions = _way(options.direct_io, plans, into_targets=into_targets)

    def open(self) -> Streamer:
        """A session with the threads and the way of reading that were chosen."""
        for decision in self.decisions:
            _log.debug(decision)
        return Streamer(self._environment())

    def _environment(self) -> dict[str, str]:
        fallback = "" if self._options.direct_io == "on" else f",{BUFFERED}"
        strategy = DIRECT + fallback if self.congruent else BUFFERED
        return {"RUNAI_STREAMER_FS_STRATEGY": strategy, **self._options.threads()}

    def failure(self, code: int | None, words: str, path: str, tensor: str, offset: int) -> CheckpointError:
        return failures.of_file(code, words, path, tensor, timeout=self._options.timeout)

    def check(self, plan: FilePlan, tensor: str, *, last: bool) -> None:
        """Raise FileChangedError unless the file is as it was when its header was read."""
        failures.require_same(plan.path, plan.state, tensor)


def _way(direct_io: str, plans: Sequence[FilePlan], *, into_targets: bool) -> tuple[bool, tuple[str, ...]]:
    """Whether to read past the page cache; and where that is left to us, what was decided and by which fact."""
    if direct_io != "auto":
        return direct_io == "on", ()
    if into_targets:
        return False, ("read through the page cache: past it, targets would be filled by way of other memory",)
    cached = _cached(plans)
    if cached is None:
        return False, ("read through the page cache: the kernel does not tell how much of the files is in it",)
    direct = cached <= _HARDLY_CACHED
    return direct, (f"read {'past' if direct else 'through'} the page cache: {cached:.0%} of the files was in it",)


def _cached(plans: Sequence[FilePlan]) -> float | None:
    """The share of the wanted bytes that is in the page cache; None where the kernel does not tell."""
    cached = total = 0.0
    for plan in plans:
        begin, end = plan.wanted[0].begin, max(each.end for each in plan.wanted)
        fraction = cached_fraction(plan.path, begin, end)
        if fraction is None:
            return None
        cached += fraction * (end - begin)
        total += end - begin
    return cached / total if total else 1.0
