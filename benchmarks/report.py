# SPDX-License-Identifier: Apache-2.0
"""A run as Markdown tables for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.settings import GIB, MIB
from benchmarks.summary import ByArm, Results, Spread, reader_of, spread, summarised, times_of
from benchmarks.verdicts import Verdict
from benchmarks.works import Work

SCHEMA = 1


@dataclass
class Run:
    """Everything that one run has found. ``absent`` maps arms, and works, to the reason they were not measured."""

    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    absent: dict[str, str] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    results: dict[str, ByArm] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "absent": self.absent,
            "works": {
                name: {
                    **asdict(self.works[name]),
                    "note": self.notes.get(name),
                    "reader": reader_of(arms),
                    "summary": summarised(arms),
                    "rounds": {arm: list(results) for arm, results in arms.items()},
                }
                for name, arms in self.results.items()
            },
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def text(self) -> str:
        parts = [self._conditions()]
        parts += [_section(self.works[name], arms, self.notes.get(name)) for name, arms in self.results.items()]
        if self.absent:
            parts.append("### Not measured\n\n" + "\n".join(f"- {name}: {why}" for name, why in self.absent.items()))
        if self.verdicts:
            parts.append("### Thresholds\n\n" + "\n".join(f"- {verdict}" for verdict in self.verdicts))
        return "\n\n".join(parts) + "\n"

    def _conditions(self) -> str:
        machine, settings = self.machine, self.settings
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
        return "\n".join((
            f"{settings['size_bytes'] / GIB:.3g} GiB of bf16 in {settings['shards']} shards, {settings['rounds']} "
            f"interleaved rounds, medians (lowest to highest); each measurement in a process of its own.",
            f"Linux {machine['kernel']} {machine['machine']}, {machine['cpus']} CPUs, "
            f"{machine['memory_bytes'] / GIB:.0f} GiB memory, read_ahead_kb {machine['read_ahead_kb']}, transparent "
            f"huge pages {machine['transparent_hugepage']}, load average at the start "
            f"{machine['load_average'][0]:.1f}; Python {machine['python']}, {versions}.",
        ))  # fmt: skip


_COLUMNS = (
    "arm", "seconds", "time / reader's", "GiB/s", "read calls MiB", "storage MiB", "anon MiB", "file MiB",
    "major faults", "cached before", "after",
)  # fmt: skip


def _section(work: Work, arms: ByArm, note: str | None) -> str:
    reader = reader_of(arms)
    columns = (*_COLUMNS, "worst stall ms") if work.ticker else _COLUMNS
    rows = [_row(work, arm, results, arms.get(reader or "", ())) for arm, results in arms.items()]
    lines = [f"### {work.name}: {work.title}", ""]
    lines += [note, ""] if note else []
    lines += _table(columns, rows)
    failures = {arm: each["error"] for arm, results in arms.items() for each in results if "error" in each}
    lines += ["", *(f"- {arm} failed: {error}" for arm, error in failures.items())] if failures else []
    return "\n".join(lines)


def _row(work: Work, arm: str, results: Results, reader: Results) -> list[str]:
    seconds, nbytes = spread(results, "seconds"), spread(results, "bytes")
    speed = f"{nbytes.median / seconds.median / GIB:.2f}" if seconds and nbytes else "-"
    row = [
        arm,
        _spread(seconds, 3),
        _spread(times_of(results, reader), 2),
        speed,
        *(_mib(spread(results, name)) for name in ("rchar", "read_bytes", "anon_beyond", "file_beyond")),
        _median(spread(results, "major_faults"), "{:.0f}"),
        _median(spread(results, "cached_before"), "{:.0%}"),
        _median(spread(results, "cached_after"), "{:.0%}"),
    ]
    if work.ticker:
        stall = spread(results, "stall")
        row.append(_spread(stall and Spread(stall.median * 1e3, stall.low * 1e3, stall.high * 1e3), 1))
    return row


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]


def _spread(found: Spread | None, digits: int) -> str:
    return f"{found.median:.{digits}f} ({found.low:.{digits}f}-{found.high:.{digits}f})" if found else "-"


def _mib(found: Spread | None) -> str:
    return _median(found and Spread(found.median / MIB, found.low / MIB, found.high / MIB), "{:.1f}")


def _median(found: Spread | None, form: str) -> str:
    return form.format(found.median) if found else "-"
