# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks``: measure, print the tables and the thresholds, write JSON and a chart."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import data
from benchmarks.chart import draw
from benchmarks.conditions import machine
from benchmarks.entries import read_entries
from benchmarks.peers import ARMS
from benchmarks.report import Run
from benchmarks.rounds import Rounds
from benchmarks.settings import MIB, parse_size
from benchmarks.slowfs import SlowMount
from benchmarks.verdicts import verdicts
from benchmarks.works import GROUPS

QUICK_BYTES, QUICK_ROUNDS, QUICK_TENSORS = 128 * MIB, 2, 2000
_SLOW_PART = 8
"""Storage that answers late is measured with this part of the bytes: a reader that waits at each request takes long."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    size = QUICK_BYTES if options.quick else options.size
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    absent = {name: why for name in options.arms if (why := ARMS[name].absent()) is not None}
    arms = [name for name in options.arms if name not in absent]
    _warn_of_load()
    with ExitStack() as stack:
        checkpoints = {"model": data.model(options.data, size, options.shards)}
        settings = {"size_bytes": size, "shards": options.shards, "rounds": rounds, "latency_ms": options.latency_ms}
        run = Run(
            settings=settings | {"arms": arms},
            machine=machine(checkpoints["model"].files[0]),
            absent=absent,
        )
        measuring = Rounds(arms, rounds, data.model(options.data, 1 << 14, 2), say=_say)
        for work in (work for group in options.work for work in GROUPS[group]):
            try:
                if work.data not in checkpoints:
                    checkpoints[work.data] = _checkpoint(work.data, options, size, stack, run)
            except OSError as error:
                run.absent[work.name] = f"{error}"
                continue
            run.works[work.name] = work
            run.results[work.name] = measuring.run(work, checkpoints[work.data])
    largest = max(entry.nbytes for entry in read_entries(checkpoints["model"].files))
    run.verdicts = verdicts(run.results, largest_bytes=largest)
    return _finish(run, options.out)


def _checkpoint(kind: str, options: argparse.Namespace, size: int, stack: ExitStack, run: Run) -> data.Checkpoint:
    if kind == "small":
        count = QUICK_TENSORS if options.quick else options.tensors
        checkpoint = data.small(options.data, count)
        for name in ("small-into", "small-own"):
            run.notes[name] = f"{count:,} vectors of 128 bytes to 8 KiB, {checkpoint.nbytes / MIB:.0f} MiB in all."
        return checkpoint
    checkpoint = data.model(options.data, max(size // _SLOW_PART, 1 << 16), options.shards)
    mount = SlowMount(Path(checkpoint.files[0]).parent, options.out / "mount", latency_ms=options.latency_ms)
    stack.enter_context(mount)
    run.notes["latency-into"] = (
        f"{checkpoint.nbytes / MIB:.0f} MiB through a FUSE mount that sleeps {options.latency_ms:g} ms at each read "
        "request, 64 at a time; evicted before each measurement."
    )
    return checkpoint.beneath(mount.folder)


def _finish(run: Run, out: Path) -> int:
    (out / "tables.md").write_text(run.text())
    run.write_json(out / "results.json")
    print(run.text())  # noqa: T201
    try:
        draw(run, out / "chart.png")
    except ImportError as error:
        _say(f"no chart: {error}")
    _say(f"written: {out}/tables.md, results.json, chart.png")
    measured = any("seconds" in each for arms in run.results.values() for found in arms.values() for each in found)
    return 0 if measured else 1


def _warn_of_load() -> None:
    """Threads that wait for each other (OpenMP's, behind torch's copies) suffer most from a busy machine."""
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cpus / 4:
        _say(f"the load average is {load:.1f} on {cpus} CPUs: these numbers will be of a busy machine")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="weight-readers beside its peers.")
    _several(parser, "--work", list(GROUPS))
    _several(parser, "--arms", list(ARMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=parse_size, default="2GiB", help="of the checkpoint (default: 2GiB)")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--tensors", type=int, default=20_000, help="of the work small (default: 20,000)")
    parser.add_argument("--latency-ms", type=float, default=2.0, help="of the slow storage (default: 2)")
    parser.add_argument("--data", type=Path, default=Path("build/bench/data"), help="where checkpoints are kept")
    parser.add_argument("--out", type=Path, default=Path("build/bench/results"), help="where results are written")
    parser.add_argument("--quick", action="store_true", help="128 MiB and 2 rounds: does everything run?")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.shards < 1:
        parser.error("--rounds and --shards must be at least 1")
    options.out, options.data = options.out.resolve(), options.data.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def _several(parser: argparse.ArgumentParser, flag: str, of: list[str]) -> None:
    parser.add_argument(flag, nargs="+", choices=of, default=of, metavar="NAME", help=f"of: {', '.join(of)}")


if __name__ == "__main__":
    sys.exit(main())
