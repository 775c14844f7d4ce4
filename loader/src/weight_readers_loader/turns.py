# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is among files that are read one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from weight_readers import ReadStats
from weight_readers_loader.streams import Stream, Weights, ended


class Turns:
    """Tells ``on_file`` of each file of ``counts``, ``(path, tensors)``, once all tensors before it are delivered.

    That is before its own first one is there: a page that storage does not deliver, and memory that runs out, end a
    process before, and whoever asks what it died of or waits for is to hear of this file and not of the last one.
    """

    def __init__(self, on_file: Callable[[str], None], counts: Iterable[tuple[str, int]]) -> None:
        self._on_file = on_file
        self._due: deque[tuple[int, str]] = deque()
        begin = 0
        for path, count in counts:
            self._due.append((begin, path))
            begin += count

    def reached(self, stats: ReadStats) -> None:
        self.delivered(stats.tensors)

    def delivered(self, tensors: int) -> None:
        while self._due and self._due[0][0] <= tensors:
            self._on_file(self._due.popleft()[1])

    def following(self, weights: Weights) -> Stream:
        self.delivered(0)
        with ended(weights):
            for number, (name, tensor) in enumerate(weights, 1):
                yield name, tensor
                self.delivered(number)
