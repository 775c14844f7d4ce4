# SPDX-License-Identifier: Apache-2.0
"""One measurement, in a fresh process: one arm, one work, once."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.conditions import Counters, resident
from benchmarks.delivered import check, existing, touch
from benchmarks.entries import Entry
from benchmarks.peers import ARMS, Arm
from benchmarks.works import Work

SLEEP_SECONDS = 0.02
"""What the slow consumer sleeps at each tensor."""


@dataclass(frozen=True)
class Job:
    """``files`` are what the arm reads (its twin's, for torch) and ``wanted`` what of them; the headers were read
    elsewhere, since a cold file is to be cold. The ``tiny`` ones, a few kilobytes, are to warm up with."""

    arm: str
    work: Work
    files: Sequence[str]
    wanted: Sequence[Entry]
    tiny_files: Sequence[str]
    tiny_wanted: Sequence[Entry]
    verify: bool


class Ticker:
    """A thread that wakes every millisecond; ``worst`` is by how much, in seconds, one wake was late."""

    def __init__(self, *, period: float = 0.001) -> None:
        self.worst = 0.0
        self._period = period
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._done.is_set():
            time.sleep(self._period)
            now = time.perf_counter()
            self.worst = max(self.worst, now - last - self._period)
            last = now


def child(answer: Connection, job: Job) -> None:
    """Measure and send the figures, or ``{"error": …}``."""
    try:
        answer.send(measure(job))
    except BaseException as error:
        answer.send({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})


def measure(job: Job) -> dict[str, Any]:
    kind = ARMS[job.arm]
    os.environ.update(kind.environment)
    # Imports, dlopen and first calls happen here, on a few kilobytes.
    _ready(kind(), job.work, job.tiny_files, job.tiny_wanted)[0]()
    run, delivered = _ready(kind(), job.work, job.files, job.wanted)
    gc.collect()
    figures, result = _timed(run, ticker=job.work.ticker)
    if job.verify and (tensors := delivered(result)) is not None:
        check(tensors, job.wanted)
    return figures | {"bytes": sum(entry.nbytes for entry in job.wanted), "verified": job.verify}


_Run = Callable[[], Any]


def _ready(arm: Arm, work: Work, files: Sequence[str], wanted: Sequence[Entry]) -> tuple[_Run, Callable[[Any], Any]]:
    """What is timed, and how to find in its result what it delivered."""
    arm.late = work.data == "slow"
    if work.kind == "into":
        targets = existing(wanted)
        arm.prepare(wanted, targets)
        return lambda: arm.into(files, targets), lambda _: targets
    arm.prepare(wanted, None)
    if work.kind == "rows":
        return lambda: arm.rows(files), lambda tensors: tensors
    if work.kind == "slow":
        return lambda: _consume_slowly(arm, files), lambda _: None
    keys = None if work.selection == "all" else {entry.name for entry in wanted}
    return lambda: arm.owned(files, keys), lambda tensors: tensors


def _consume_slowly(arm: Arm, files: Sequence[str]) -> None:
    for _, tensor in arm.stream(files):
        touch(tensor)
        time.sleep(SLEEP_SECONDS)


def _timed(run: _Run, *, ticker: bool) -> tuple[dict[str, Any], Any]:
    stall = None
    anon, file = resident()
    before = Counters.now()
    begin = time.monotonic_ns()
    if ticker:
        with Ticker() as ticks:
            result = run()
        stall = ticks.worst
    else:
        result = run()
    end = time.monotonic_ns()
    counted = before.until(Counters.now())
    return {
        "begin": begin,
        "end": end,
        "seconds": (end - begin) / 1e9,
        "stall": stall,
        "anon_before": anon,
        "file_before": file,
        "anon_after": resident()[0],
        "file_after": resident()[1],
        "torch_threads": torch.get_num_threads(),
        **counted,
    }, result
