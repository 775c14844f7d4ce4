# SPDX-License-Identifier: Apache-2.0
"""Medians with their spread, and ratios of two arms within the same rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.settings import FALLBACK, READER

Results = Sequence[Mapping[str, Any]]
"""Of one arm in one work, a round each."""
ByArm = Mapping[str, Results]


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None


def values(results: Results, field: str) -> list[float]:
    """A figure of every round that has it (a round that failed has none)."""
    return [result[field] for result in results if result.get(field) is not None]


def spread(results: Results, field: str) -> Spread | None:
    return Spread.of(values(results, field))


def times_of(arm: Results, reader: Results, field: str = "seconds") -> Spread | None:
    """How many times the reader's figure the arm's is, round by round; above 1 the reader is better."""
    of_reader = {result["round"]: result[field] for result in reader if result.get(field)}
    pairs = [
        result[field] / of_reader[result["round"]]
        for result in arm
        if result.get(field) is not None and result["round"] in of_reader
    ]
    return Spread.of(pairs)


def reader_of(arms: ByArm) -> str | None:
    """The arm that others are compared with: the threaded reader, or the fallback where that is not installed."""
    return next((name for name in (READER, FALLBACK) if values(arms.get(name, ()), "seconds")), None)


def summarised(arms: ByArm) -> dict[str, Any]:
    """For JSON: each arm's spreads and its ratio to the reader."""
    reader = reader_of(arms)
    fields = (
        "seconds", "stall", "rchar", "read_bytes", "major_faults", "anon_beyond", "file_beyond",
        "cached_before", "cached_after", "load",
    )  # fmt: skip
    summary = {}
    for arm, results in arms.items():
        found = {field: spread(results, field) for field in fields}
        found["times_of_reader"] = times_of(results, arms[reader]) if reader else None
        summary[arm] = {
            **{field: asdict(each) for field, each in found.items() if each is not None},
            "errors": sorted({result["error"] for result in results if "error" in result}),
        }
    return summary
