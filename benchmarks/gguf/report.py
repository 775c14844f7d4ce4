# SPDX-License-Identifier: Apache-2.0
"""A run as Markdown tables for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gguf import arms, device
from benchmarks.gguf.verdicts import ByWork, ratio
from benchmarks.rounds import Result
from benchmarks.settings import GIB, MIB
from benchmarks.summary import ByArm, Results, Spread, spread
from benchmarks.verdicts import Verdict

SCHEMA = 1


@dataclass
class Run:
    """Everything that one run has found: ``results`` by work, then by type or file, then by arm."""

    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    absent: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, dict[str, list[Result]]]] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()

    def write_json(self, path: Path) -> None:
        document = {
            "schema": SCHEMA,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "absent": self.absent,
            "works": {work: {"title": self.titles.get(work, work), "rounds": of} for work, of in self.results.items()},
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }
        path.write_text(json.dumps(document, indent=1) + "\n")

    def text(self) -> str:
        parts = [self._conditions()]
        parts += [_section(self.titles.get(work, work), work, found) for work, found in self.results.items()]
        lists = {
            "Failed": _failures(self.results),
            "Not measured": [f"{name}: {why}" for name, why in self.absent.items()],
            "Thresholds": [str(each) for each in self.verdicts],
        }
        parts += [_listed(title, lines) for title, lines in lists.items() if lines]
        return "\n\n".join(parts) + "\n"

    def _conditions(self) -> str:
        machine, settings = self.machine, self.settings
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
        return (
            f"Weights of {settings['rows']} x {settings['columns']}, {settings['threads']} threads, "
            f"{settings['rounds']} interleaved rounds, medians. Linux {machine['kernel']} {machine['machine']}, "
            f"{machine['cpus']} CPUs, transparent huge pages {machine['transparent_hugepage']}, load average at the "
            f"start {machine['load_average'][0]:.1f}; Python {machine['python']}, {versions}."
        )


def _section(title: str, work: str, found: Mapping[str, ByArm]) -> str:
    table = _TABLES.get(work, _speeds)
    return f"### {title}\n\n" + "\n".join(table(found))


def _speeds(found: Mapping[str, ByArm]) -> list[str]:
    """GiB/s of what was written, and how many times our time the others' is."""
    names = list(dict.fromkeys(arm for by_arm in found.values() for arm in by_arm))
    others = [arm for arm in _PEERS if arm in names]
    columns = ["type", *(f"{arm} GiB/s" for arm in names), *(f"times {arm}" for arm in others)]
    rows = []
    for name, by_arm in found.items():
        speeds = [_speed(by_arm.get(arm, ())) for arm in names]
        rows.append([name, *speeds, *(_ratio(ratio(by_arm, arm, arms.OURS)) for arm in others)])
    return _table(columns, rows)


_PEERS = (arms.GGUF, arms.GGUF_THREADS, arms.LIBGGUF)


def _opened(found: Mapping[str, ByArm]) -> list[str]:
    rows = []
    for name, by_arm in found.items():
        for arm, results in by_arm.items():
            memory = (_each(spread(results, field), 1 / MIB, 1) for field in ("peak", "held"))
            rows.append([name, arm, _each(spread(results, "seconds"), 1e3, 2), *memory])
    return _table(["file", "arm", "ms", "peak MiB", "held MiB"], rows)


def _bandwidths(found: Mapping[str, ByArm]) -> list[str]:
    rows = [
        [name, *(_speed(by_arm[arm]) for arm in (device.DEQUANTIZE, device.COPY)),
         _ratio(ratio(by_arm, device.COPY, device.DEQUANTIZE))]
        for name, by_arm in found.items()
    ]  # fmt: skip
    return _table(["type", f"{device.DEQUANTIZE} GiB/s", f"{device.COPY} GiB/s", "of the copy"], rows)


def _linears(found: Mapping[str, ByArm]) -> list[str]:
    rows = [
        [name, *(_each(spread(by_arm[arm], "seconds"), 1e6, 1) for arm in (device.APPLY, device.GEMM)),
         _ratio(ratio(by_arm, device.APPLY, device.GEMM))]
        for name, by_arm in found.items()
    ]  # fmt: skip
    return _table(["type, tokens", f"{device.APPLY} us", f"{device.GEMM} us", "times the GEMM"], rows)


_TABLES: Mapping[str, Callable[[Mapping[str, ByArm]], list[str]]] = {
    "opening": _opened,
    "device": _bandwidths,
    "linear": _linears,
}


def _failures(results: ByWork) -> list[str]:
    return [
        f"{work} {name}, {arm}: {each['error']}"
        for work, found in results.items()
        for name, by_arm in found.items()
        for arm, rounds in by_arm.items()
        for each in rounds
        if "error" in each
    ]


def _listed(title: str, lines: Sequence[str]) -> str:
    return f"### {title}\n\n" + "\n".join(f"- {line}" for line in lines)


def _speed(results: Results) -> str:
    seconds, nbytes = spread(results, "seconds"), spread(results, "bytes")
    return f"{nbytes.median / seconds.median / GIB:.2f}" if seconds and nbytes else "-"


def _ratio(found: Spread | None) -> str:
    return f"{found.median:.2f}" if found else "-"


def _each(found: Spread | None, factor: float, digits: int) -> str:
    if found is None:
        return "-"
    return f"{found.median * factor:.{digits}f} ({found.low * factor:.{digits}f}-{found.high * factor:.{digits}f})"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]
