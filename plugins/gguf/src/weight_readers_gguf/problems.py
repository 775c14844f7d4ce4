# SPDX-License-Identifier: Apache-2.0
"""All that is wrong with one model, as far as anybody reads it: the first problems, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterable

from weight_readers.errors import CheckpointError

MAX_PROBLEMS = 100
"""Problems listed of a checkpoint, in all of its files. Each tensor and each file of it could have one."""


class Problems:
    """Problems in the order they were found; those beyond the limit are counted only."""

    def __init__(self) -> None:
        self._first: list[CheckpointError] = []
        self._more = 0

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, problem: CheckpointError) -> None:
        if len(self._first) < MAX_PROBLEMS:
            self._first.append(problem)
        else:
            self._more += 1

    def extend(self, problems: Iterable[CheckpointError]) -> None:
        for problem in problems:
            self.add(problem)

    def listed(self, path: str) -> list[CheckpointError]:
        """The first ones, and as the last one the number of the others; ``path`` is where all the files lie."""
        if not self._more:
            return list(self._first)
        others = CheckpointError(
            f"{self._more} more problems, which are not listed", path=path, fix="Mend the first ones, and look again"
        )
        return [*self._first, others]
