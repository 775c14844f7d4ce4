# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.policy``: what it costs to let the policy choose (``make bench-policy``).

Each case is loaded by the automatic choice, with much and with little memory, and by every installed reader with each
of its settings, in one process, in turns that rotate, short ones until the case had its time: the best of eleven
medians lies below what its arm takes, the more so the fewer rounds there are. Before a load of everything all wait
until memory that was freed is with the host again, where the machine is a virtual one that gives it back (free page
reporting): to take it anew costs as much as the load, and else some arms would and some would not. The regret is the
automatic choice's median time over that of the arm with the least; with little memory only over arms whose anonymous
memory was within the budget. What the automatic choice and the arm that is made in the same way differ by is noise,
and the cost of looking at the machine: that arm is told of with its own ratio. How long looking and choosing took is
told of each case.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch

from benchmarks.conditions import evict, give_back, rest, warm
from benchmarks.data import model
from benchmarks.entries import row_range
from benchmarks.rounds import orders
from benchmarks.settings import EVERY_KEY, GIB, MIB, parse_size
from weight_readers import TensorSlice, WeightReadersError
from weight_readers_loader import Checkpoint, LoadReport, open_checkpoint
from weight_readers_loader.process import PeakMemory, resident_bytes

GOAL = 1.15
MOST_ROUNDS = 60
SLACK_BYTES = 4 * MIB
"""Of anonymous memory that is the interpreter's own: Python objects, and what malloc keeps."""

Arm = tuple[str | None, dict[str, Any]]
ARMS: dict[str, Arm] = {
    "mapped": ("safetensors", {"copy": False, "prefetch": 0}),
    "mapped, prefetch 2": ("safetensors", {"copy": False, "prefetch": 2}),
    "copied": ("safetensors", {"copy": True, "prefetch": 0}),
    "threaded 1": ("threaded", {"num_threads": 1}),
    "threaded 2": ("threaded", {"num_threads": 2}),
    "threaded 4": ("threaded", {"num_threads": 4}),
    "threaded direct": ("threaded", {"num_threads": 4, "direct_io": "on"}),
    "runai": ("runai_streamer", {"direct_io": "off"}),
    "runai direct": ("runai_streamer", {"direct_io": "on"}),
}
AUTO, TIGHT = "auto", "auto, tight"
_DEFAULTS: Mapping[str, Any] = {"copy": False, "prefetch": 0, "direct_io": "off"}
_BOUNDS = ("max_in_flight_bytes", "memory_limit")


@dataclass(frozen=True)
class Case:
    """``cache`` cached or cold, ``kind`` keep or into, ``part`` whole, keys or rows."""

    cache: str
    kind: str
    part: str

    def __str__(self) -> str:
        return f"{self.cache} {self.kind} {self.part}"


CASES = [Case(*each) for each in itertools.product(("cached", "cold"), ("keep", "into"), ("whole", "keys", "rows"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=GIB, help="of the checkpoint, in 4 shards")
    parser.add_argument("--rounds", type=int, default=7, help="at least")
    parser.add_argument(
        "--seconds", type=float, default=30, help=f"of each case, at least, within {MOST_ROUNDS} rounds"
    )
    parser.add_argument("--case", action="append", metavar="NAME", help="only this one, as 'cold keep whole'")
    parser.add_argument("--data", type=Path, default=Path("build/bench/data"))
    given = parser.parse_args()
    begin = time.perf_counter()
    files = model(given.data, given.size, 4).files
    say(f"{given.size >> 20} MiB in 4 shards, {given.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for case in CASES:
        if given.case is None or str(case) in given.case:
            for line in lines(case, *measured(case, files, given.rounds, given.seconds)):
                say(line)
    say(f"{time.perf_counter() - begin:.0f} s in all, load {os.getloadavg()[0]:.1f}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def measured(
    case: Case, files: Sequence[str], least: int, seconds: float
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Arm -> its result in each of ``least`` rounds or more, for ``seconds``, and the budget of the tight choice."""
    folder = str(Path(files[0]).parent)
    tensors = open_checkpoint(folder, reader="safetensors").tensors
    names, budget, do = [AUTO, TIGHT, *ARMS], tight_budget(case, tensors), work(case, tensors)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    few = work(replace(case, part="keys"), tensors)
    for name in names:  # imports, dlopen and first calls
        loaded(name, folder, budget, few)
    gc.collect()
    gc.freeze()  # what there is by now is not looked through before each load
    begin = time.perf_counter()
    for number, order in enumerate(orders(names, max(least, MOST_ROUNDS))):
        if number >= least and time.perf_counter() - begin > seconds:
            break
        for name in order:
            (evict if case.cache == "cold" else warm)(files)
            results[name].append(loaded(name, folder, budget, do, rested=case.part == "whole"))
    return results, budget


def loaded(
    name: str, folder: str, budget: int, do: Callable[[Checkpoint], Any], *, rested: bool = False
) -> dict[str, Any]:
    """One load by one arm, clocked from the name of the folder until every byte was touched; or what it failed with."""
    reader, settings = ARMS.get(name, (None, {}))
    gc.collect()
    give_back()
    if rested:
        rest()
    before = resident_bytes() or (0, 0)
    try:
        with PeakMemory(interval=0.002) as peak:
            begin = time.perf_counter()
            checkpoint = open_checkpoint(
                folder, reader=reader, reader_options=settings, host_budget=budget if name == TIGHT else None
            )
            report = do(checkpoint)
            seconds = time.perf_counter() - begin
    except WeightReadersError as error:
        return {"error": str(error)}
    chosen = report.selection.candidate(report.selection.chosen or "")
    return {
        "seconds": seconds,
        "choosing": report.phases["select"],
        "anon": max(0, (peak.anon or 0) - before[0]),
        "reader": report.selection.chosen,
        "settings": {**(chosen.settings if chosen is not None else {}), **settings},
    }


def work(case: Case, tensors: Mapping[str, Any]) -> Callable[[Checkpoint], LoadReport]:
    """What is done with the checkpoint, into targets that exist before."""
    names, slices = wanted(case, tensors)
    shapes = {name: _shape(tensors[name].shape, slices.get(name)) for name in names if case.kind == "into"}
    targets = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}

    def keep(checkpoint: Checkpoint) -> LoadReport:
        checkpoint.state_dict(key_filter=names.__contains__, slices=slices, touch=True)
        return cast(LoadReport, checkpoint.report)

    def fill(checkpoint: Checkpoint) -> LoadReport:
        return checkpoint.load_into(targets, slices=slices, strict=False)

    return keep if case.kind == "keep" else fill


def wanted(case: Case, tensors: Mapping[str, Any]) -> tuple[set[str], dict[str, Any]]:
    if case.part != "rows":
        return set(list(tensors)[:: EVERY_KEY if case.part == "keys" else 1]), {}
    matrices = {name: meta.shape[0] for name, meta in tensors.items() if len(meta.shape) == 2}
    parts = {name: row_range(rows) for name, rows in matrices.items()}
    return set(parts), {name: TensorSlice(dim=0, start=start, stop=stop) for name, (start, stop) in parts.items()}


def _shape(shape: Sequence[int], part: Any) -> tuple[int, ...]:
    return tuple(shape) if part is None else (part.stop - part.start, *shape[1:])


def tight_budget(case: Case, tensors: Mapping[str, Any]) -> int:
    """A quarter of what is wanted, and at least three of its largest tensors: less cannot be copied one by one."""
    names, slices = wanted(case, tensors)
    sizes = [2 * torch.Size(_shape(tensors[name].shape, slices.get(name))).numel() for name in names]
    return max(sum(sizes) // 4, 3 * max(sizes))


def regret(results: Mapping[str, Sequence[Mapping[str, Any]]], auto: str, budget: int | None) -> tuple[float, str]:
    """The automatic choice's median time over the best arm's, and which arm that is.

    With a ``budget`` only arms count that kept to it in every round.
    """
    fitting = [
        name
        for name in ARMS
        if all("error" not in r and (budget is None or r["anon"] <= budget + SLACK_BYTES) for r in results[name])
    ]
    best = min(fitting, key=lambda name: _milliseconds(results[name], "seconds"))
    return _ratio(results, auto, best), best


def _ratio(results: Mapping[str, Sequence[Mapping[str, Any]]], auto: str, arm: str) -> float:
    return _milliseconds(results[auto], "seconds") / _milliseconds(results[arm], "seconds")


def made_alike(auto: Mapping[str, Any], arm: str) -> bool:
    """Whether the arm is the reader that was chosen, with the settings that it was given, bounds of memory aside."""
    reader, settings = ARMS[arm]
    chosen = {option: value for option, value in auto["settings"].items() if option not in _BOUNDS}
    stated = {option: value for option, value in settings.items() if _DEFAULTS.get(option) != value}
    return bool(auto["reader"] == reader and chosen == stated)


def lines(case: Case, results: Mapping[str, Sequence[Mapping[str, Any]]], budget: int) -> list[str]:
    """The two regrets of a case, every arm's median, and why arms failed."""
    told = [f"{case}, {len(results[AUTO])} rounds"]
    for auto, limit in ((AUTO, None), (TIGHT, budget)):
        failed = _fault(results[auto])
        told.append(f"{case}, {auto}: {failed}" if failed else _regretted(case, results, auto, limit))
    each = (f"{name} {_median(rs)}" for name, rs in results.items())
    failures = (f"    {name}: {fault}" for name in ARMS if (fault := _fault(results[name])))
    return [*told, f"    {', '.join(each)}", *failures]


def _regretted(case: Case, results: Mapping[str, Sequence[Mapping[str, Any]]], auto: str, limit: int | None) -> str:
    ratio, best = regret(results, auto, limit)
    mine, its = (_milliseconds(results[name], "seconds") for name in (auto, best))
    choosing = _milliseconds(results[auto], "choosing")
    anon = max(r["anon"] for r in results[auto])
    within = "" if limit is None else f", {anon / MIB:.0f} of {limit / MIB:.0f} MiB of memory"
    over = "  OVER THE BUDGET" if limit is not None and anon > limit + SLACK_BYTES else ""
    mark = "" if ratio <= GOAL else f"  OVER {GOAL}"
    first = results[auto][0]
    made = f"{first['reader']}({', '.join(f'{option}={value}' for option, value in first['settings'].items())})"
    same = [arm for arm in ARMS if made_alike(first, arm)]
    alike = "".join(f", {_ratio(results, auto, arm):.2f} x {arm}, which is the same" for arm in same if arm != best)
    alike = " (the same)" if best in same else alike
    took = f"{mine:.0f} ms ({choosing:.1f} looking and choosing), {ratio:.2f} x {best} ({its:.0f} ms){alike}"
    return f"{case}, {auto}: {took}{within}; {made}{mark}{over}"


def _fault(results: Sequence[Mapping[str, Any]]) -> str | None:
    return next((result["error"] for result in results if "error" in result), None)


def _milliseconds(results: Sequence[Mapping[str, Any]], what: str) -> float:
    return float(median(result[what] for result in results)) * 1e3


def _median(results: Sequence[Mapping[str, Any]]) -> str:
    if _fault(results):
        return "failed"
    times = sorted(result["seconds"] * 1e3 for result in results)
    anon = max(result["anon"] for result in results) / MIB
    return f"{median(times):.0f} ({times[0]:.0f}-{times[-1]:.0f})/{anon:.0f}"


if __name__ == "__main__":
    main()
