# SPDX-License-Identifier: Apache-2.0
"""A run as one picture: a panel for each work, a bar for each arm, whiskers from the lowest to the highest round."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import Run
from benchmarks.settings import FALLBACK, GIB, LIMIT, MIB, READER
from benchmarks.summary import ByArm, Results, spread, values
from benchmarks.works import Work

_COLOURS = {READER: "#1b6ca8", FALLBACK: "#6fa8dc", LIMIT: "#444444"}
_PEER = "#c9c9c9"
_LABELS = {"seconds": "GiB/s, more is better", "anon": "anonymous MiB, less is better", "stall": "ms, less is better"}
_COLUMNS = 2


class _Bar(NamedTuple):
    arm: str
    value: float
    low: float
    high: float


def draw(run: Run, path: Path) -> None:
    """Write the PNG. Raises ImportError where matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = max(1, -(-len(run.results) // _COLUMNS))
    figure, axes = pyplot.subplots(
        rows, _COLUMNS, figsize=(7 * _COLUMNS, 3.4 * rows), squeeze=False, layout="constrained"
    )
    for axis, (name, arms) in zip(axes.flat, run.results.items(), strict=False):
        _panel(axis, run.works[name], arms)
    for axis in list(axes.flat)[len(run.results) :]:
        axis.set_visible(False)
    settings = run.settings
    figure.suptitle(
        f"{settings['size_bytes'] / GIB:.3g} GiB bf16, {settings['shards']} shards, "
        f"{settings['rounds']} interleaved rounds, {run.machine['cpus']} CPUs"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, work: Work, arms: ByArm) -> None:
    bars = [bar for arm, results in arms.items() if (bar := _bar(work, arm, results)) is not None]
    bars.reverse()  # the first arm on top
    errors = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
    axis.barh(
        [bar.arm for bar in bars],
        [bar.value for bar in bars],
        xerr=errors,
        color=[_COLOURS.get(bar.arm, _PEER) for bar in bars],
        error_kw={"ecolor": "#222222", "capsize": 3, "linewidth": 1},
    )
    for place, bar in enumerate(bars):
        axis.annotate(
            f"{bar.value:.3g}", (max(bar.high, 0), place), xytext=(6, 0), textcoords="offset points", va="center"
        )
    axis.margins(x=0.15)
    axis.set_title(f"{work.name}: {work.title}", fontsize=10, loc="left")
    axis.set_xlabel(_LABELS[work.metric], fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)


def _bar(work: Work, arm: str, results: Results) -> _Bar | None:
    if work.metric == "seconds":
        seconds, nbytes = spread(results, "seconds"), values(results, "bytes")
        if seconds is None:
            return None
        speeds = (nbytes[0] / GIB / each for each in (seconds.median, seconds.high, seconds.low))
        return _Bar(arm, *speeds)
    found = spread(results, "anon_beyond" if work.metric == "anon" else "stall")
    scale = 1 / MIB if work.metric == "anon" else 1e3
    return None if found is None else _Bar(arm, found.median * scale, found.low * scale, found.high * scale)
