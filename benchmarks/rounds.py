# SPDX-License-Identifier: Apache-2.0
"""Interleaved rounds: in each, every arm once, in an order that rotates; each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from benchmarks.conditions import MemorySampler, cached_share, evict, warm
from benchmarks.data import Checkpoint
from benchmarks.entries import SELECTIONS, Entry, read_entries
from benchmarks.measure import Job, child
from benchmarks.peers import ARMS
from benchmarks.works import Work

TIMEOUT_SECONDS = 600
Result = dict[str, Any]


def orders(arms: Sequence[str], rounds: int) -> list[list[str]]:
    """In each round from the next arm on, and in other steps, so that no arm keeps its place or its predecessor.

    What was done before counts: a disk that was just read around the page cache answers the next arm later.
    """
    count = len(arms)
    steps = [step for step in range(1, count + 1) if gcd(step, count) == 1]
    return [
        [arms[(first + steps[first % len(steps)] * place) % count] for place in range(count)] for first in range(rounds)
    ]


class Rounds:
    """Measures works. Children fork from a server that has imported torch and nothing else, so each begins with the
    same memory, an allocator that nobody used, and none of another arm's threads."""

    def __init__(self, arms: Sequence[str], rounds: int, tiny: Checkpoint, *, say: Callable[[str], None]) -> None:
        self._arms = arms
        self._rounds = rounds
        self._tiny = tiny
        self._say = say
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "numpy"])

    def run(self, work: Work, checkpoint: Checkpoint) -> dict[str, list[Result]]:
        """Results by arm, one a round. An arm that fails has ``error`` in place of figures; the others go on."""
        arms = [arm for arm in self._arms if work.kind != "slow" or ARMS[arm].streams]
        results: dict[str, list[Result]] = {arm: [] for arm in arms}
        wanted = SELECTIONS[work.selection](read_entries(checkpoint.files))
        for number, order in enumerate(orders(arms, self._rounds)):
            for arm in order:
                result = self._one(work, arm, checkpoint, wanted, verify=number == 0)
                results[arm].append({"round": number, **result})
                self._say(f"{work.name} round {number + 1}/{self._rounds} {arm}: {_brief(work, result)}")
        return results

    def _one(self, work: Work, arm: str, checkpoint: Checkpoint, wanted: list[Entry], *, verify: bool) -> Result:
        files, tiny = (each.twins if ARMS[arm].of_twin else each.files for each in (checkpoint, self._tiny))
        _set_cache(files, cold=work.cold)
        before, load = cached_share(files), os.getloadavg()[0]
        tiny_wanted = SELECTIONS[work.selection](read_entries(self._tiny.files))
        result = self._in_child(Job(arm, work, files, wanted, tiny, tiny_wanted, verify))
        return {**result, "cached_before": before, "cached_after": cached_share(files), "load": load}

    def _in_child(self, job: Job) -> Result:
        receive, send = self._context.Pipe(duplex=False)
        process = self._context.Process(target=child, args=(send, job), daemon=True)
        process.start()
        send.close()
        with MemorySampler(process.pid or 0) as sampler:
            result = _answer(receive)
        process.join(10)
        if process.is_alive():
            process.kill()
        process.join()
        if result is None:
            return {"error": f"the process ended with code {process.exitcode}, or did not within {TIMEOUT_SECONDS} s"}
        return result if "error" in result else _with_peaks(result, sampler)


def _set_cache(files: Sequence[str], *, cold: bool) -> None:
    if cold:
        evict(files)
    else:
        warm(files)


def _answer(receive: Any) -> Result | None:
    try:
        return receive.recv() if receive.poll(TIMEOUT_SECONDS) else None
    except EOFError:
        return None


def _with_peaks(result: Result, sampler: MemorySampler) -> Result:
    """Peaks beyond what the process held when the clock started (its imports, and the parameters that existed)."""
    anon, file = sampler.peak(result.pop("begin"), result.pop("end"))
    return {
        **result,
        "anon_beyond": max(anon, result["anon_after"]) - result["anon_before"],
        "file_beyond": max(file, result["file_after"]) - result["file_before"],
    }


def _brief(work: Work, result: Result) -> str:
    if "error" in result:
        return str(result["error"])
    stall = f", worst stall {result['stall'] * 1e3:.1f} ms" if work.ticker else ""
    return f"{result['seconds']:.3f} s, {result['anon_beyond'] / 2**20:.0f} MiB anonymous beyond{stall}"
