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

BUFFERED = "sync_buffered"
DIRECT = "io_uring_direct,libaio_direct"
"""Strategies of the native library. Its own default tries the direct ones first and re-reads what is cached."""

_MOSTLY_CACHED = 0.1
_PAGE_BYTES = 4096

_log = logging.getLogger("weight_readers.runai")


class LocalFiles:
    """What is wanted of local files. Where they are not in the page cache they are read past it (``auto``)."""

    guarded = False
    window = DEFAULT_MEMORY_LIMIT
    gap = _PAGE_BYTES - 1
    """Bytes between two tensors that are read along: no page could be left out."""

    def __init__(self, plans: Sequence[FilePlan], options: Options) -> None:
        self._options = options
        self.congruent = options.direct_io == "on" or (options.direct_io == "auto" and _are_cold(plans))

    def open(self) -> Streamer:
        """A session with the threads and the way of reading that were chosen."""
        _log.debug("%s reads", "direct" if self.congruent else "buffered")
        return Streamer(self._environment())

    def _environment(self) -> dict[str, str]:
        fallback = "" if self._options.direct_io == "on" else f",{BUFFERED}"
        strategy = DIRECT + fallback if self.congruent else BUFFERED
        return {"RUNAI_STREAMER_FS_STRATEGY": strategy, **self._options.threads()}

    def failure(self, code: int | None, words: str, path: str, tensor: str) -> CheckpointError:
        return failures.of_file(code, words, path, tensor, timeout=self._options.timeout)

    def check(self, plan: FilePlan, tensor: str, *, last: bool) -> None:
        """Raise FileChangedError unless the file is as it was when its header was read."""
        failures.require_same(plan.path, plan.state, tensor)


def _are_cold(plans: Sequence[FilePlan]) -> bool:
    """Whether hardly any of the wanted bytes are in the page cache. Not where the kernel does not tell."""
    cached = total = 0.0
    for plan in plans:
        begin, end = plan.wanted[0].begin, max(each.end for each in plan.wanted)
        fraction = cached_fraction(plan.path, begin, end)
        if fraction is None:
            return False
        cached += fraction * (end - begin)
        total += end - begin
    return cached <= total * _MOSTLY_CACHED and total > 0
