# SPDX-License-Identifier: Apache-2.0
"""What a load takes while it runs: its phases by the clock, its totals, its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch

from weight_readers import ReadStats
from weight_readers_loader.process import PeakMemory, major_faults, storage_bytes_read
from weight_readers_loader.streams import Stream, ended

PHASES = ("resolve", "headers", "select", "read", "place")
"""From the reference to the target, in order: find the files, read and check their headers, pick readers (once to open
the checkpoint and once to load), wait for tensors, put them where they belong."""


class Clock:
    """Seconds by phase. ``earlier`` are those that were over before this clock began."""

    def __init__(self, earlier: Mapping[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0) | dict(earlier or {})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time towards ``name``, besides what was counted before."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begun

    def run(self, name: str, work: Callable[[], None]) -> None:
        with self.phase(name):
            work()

    def waiting(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Stream:
        """The same tensors; the time until each comes counts as reading, and what is done with it does not."""
        now, seconds = time.perf_counter, self.seconds
        with ended(weights):
            begun = now()
            for pair in weights:
                seconds["read"] += now() - begun
                yield pair
                begun = now()
            seconds["read"] += now() - begun


class Meter:
    """Measures a load between enter and exit; what is not reading within it is placing."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.stats = ReadStats()
        self.seconds = 0.0
        self.seconds_to_first: float | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Meter:
        self.memory = self._stack.enter_context(PeakMemory())
        self._faults = major_faults()
        self._storage = storage_bytes_read()
        self._read_before = self.clock.seconds["read"]
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._begun
        self.clock.seconds["place"] = self.seconds - (self.clock.seconds["read"] - self._read_before)
        self._stack.close()

    def update(self, stats: ReadStats) -> None:
        if self.seconds_to_first is None and stats.tensors:
            self.seconds_to_first = time.perf_counter() - self._begun
        self.stats = stats

    def figures(self) -> dict[str, Any]:
        """The measured fields of a `LoadReport`."""
        now = storage_bytes_read()
        storage = None if now is None or self._storage is None else now - self._storage
        return {
            "tensors": self.stats.tensors,
            "bytes_wanted": self.stats.bytes_wanted,
            "bytes_read": self.stats.bytes_read,
            "decisions": self.stats.decisions,
            "copied": self.stats.copied,
            "storage_bytes": storage,
            "phases": dict(self.clock.seconds),
            "seconds": self.seconds,
            "seconds_to_first": self.seconds_to_first,
            "peak_rss_anon": self.memory.anon,
            "peak_rss_file": self.memory.file,
            "major_faults": major_faults() - self._faults,
        }
