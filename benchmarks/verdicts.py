# SPDX-License-Identifier: Apache-2.0
"""What the threaded reader has promised, held against what was measured: threshold, value, met or not.

A ratio is the median over the rounds of (the other's time / the reader's time in the same round). *Behind beyond the
noise* means slower than the peer in every round. *Out of reach* is a ratio to a peer that the limit, the bare reads of
the same bytes, does not come to in the same run: no reader can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.settings import LIMIT, MAX_IN_FLIGHT_BYTES, MIB, READER
from benchmarks.summary import ByArm, Spread, spread, times_of, values

MMAP, PREAD, VLLM = "safetensors mmap + copy", "safetensors pread", "vLLM multi-thread recipe"
RUNAI = ("Run:ai direct", "Run:ai buffered")

All = Mapping[str, ByArm]
"""Results by work, then by arm."""


@dataclass(frozen=True)
class Verdict:
    """``met`` is None where the run did not measure it; ``value`` then says why.

    limit: the same ratio of the limit, where it is less than the threshold.
    """

    line: int
    what: str
    threshold: str
    value: str
    met: bool | None
    limit: Spread | None = None

    def __str__(self) -> str:
        state = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        if self.limit is not None:
            state = f"{state}, out of reach: the limit itself is {_ratio(self.limit)}"
        return f"{self.line}. {self.what}: {self.threshold}; measured {self.value}: {state}"


def verdicts(results: All, *, largest_bytes: int) -> list[Verdict]:
    """One for each condition; ``largest_bytes`` is the size of the checkpoint's largest tensor."""
    runai = _better(results, "warm-into", RUNAI)
    return [
        _at_least(results, "warm-into", LIMIT, 0.85, 1, "warm into parameters, of the limit"),
        _at_least(results, "warm-into", VLLM, 1.5, 1, "warm into parameters, times vLLM's recipe"),
        _at_least(results, "warm-into", MMAP, 2.5, 1, "warm into parameters, times safetensors mmap + copy"),
        _at_least(results, "warm-into", runai, 4, 1, "warm into parameters, times the better Run:ai arm"),
        _at_least(results, "cold-into", LIMIT, 0.9, 2, "cold into parameters, of the limit"),
        _not_behind(results, "cold-into", 2, "cold into parameters, against every peer"),
        _memory(results, "warm-into", 64 * MIB, "read_into"),
        _memory(results, "memory-slow", MAX_IN_FLIGHT_BYTES + largest_bytes, "iter_weights with a slow consumer"),
        *(_share(results, f"{work}-{state}", state) for work in ("keys", "rows") for state in ("warm", "cold")),
        _at_least(results, "small-into", MMAP, 1, 5, "many small tensors into parameters, times mmap + copy"),
        _at_least(results, "small-own", MMAP, 1, 5, "many small tensors owned, times mmap + copy"),
        _stall(results),
    ]


def _at_least(results: All, work: str, other: str, floor: float, line: int, what: str) -> Verdict:
    arms = results.get(work, {})
    ratio = times_of(arms.get(other, ()), arms.get(READER, ()))
    judged = _judged(line, what, f">= {floor:g}", ratio, lambda ratio: (ratio.median >= floor, _ratio(ratio)), other)
    limit = times_of(arms.get(other, ()), arms.get(LIMIT, ())) if other != LIMIT else None
    unreachable = judged.met is False and limit is not None and limit.median < floor
    return replace(judged, limit=limit) if unreachable else judged


def _better(results: All, work: str, names: tuple[str, ...]) -> str:
    """The fastest of some arms."""
    seconds = {name: spread(results.get(work, {}).get(name, ()), "seconds") for name in names}
    measured = {name: each.median for name, each in seconds.items() if each is not None}
    return min(measured, key=measured.__getitem__, default=names[0])


def _not_behind(results: All, work: str, line: int, what: str) -> Verdict:
    arms = results.get(work, {})
    ratios = {
        name: times_of(found, arms.get(READER, ())) for name, found in arms.items() if name not in (READER, LIMIT)
    }
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    closest = min(known, key=lambda name: known[name].median, default=None)
    threshold = "not slower in every round than any of them"
    if closest is None:
        return Verdict(line, what, threshold, "nothing", None)
    behind = [name for name, ratio in known.items() if ratio.high < 1]
    value = f"closest is {closest} at {_ratio(known[closest])}" + (f", behind {', '.join(behind)}" if behind else "")
    return Verdict(line, what, threshold, value, not behind)


def _memory(results: All, work: str, ceiling: int, what: str) -> Verdict:
    beyond = spread(results.get(work, {}).get(READER, ()), "anon_beyond")
    return _judged(
        3,
        f"peak anonymous memory beyond the model, {what}",
        f"<= {ceiling / MIB:.0f} MiB",
        beyond,
        lambda beyond: (beyond.high <= ceiling, f"{beyond.high / MIB:.1f} MiB at most"),
        READER,
    )


def _share(results: All, work: str, state: str) -> Verdict:
    """Bytes asked of read calls (warm), fetched from storage (cold), over the bytes that were wanted."""
    of_reader = results.get(work, {}).get(READER, ())
    field = "rchar" if state == "warm" else "read_bytes"
    read, wanted = values(of_reader, field), values(of_reader, "bytes")
    share = Spread.of([one / other for one, other in zip(read, wanted, strict=True)])
    return _judged(
        4,
        f"{work}, {field} over bytes wanted",
        "<= 1.01",
        share,
        lambda share: (share.median <= 1.01, f"{share.median:.4f} ({share.low:.4f} to {share.high:.4f})"),
        READER,
    )


def _stall(results: All) -> Verdict:
    arms = results.get("ticker-into", {})
    others = [(name, values(arms.get(name, ()), "stall")) for name in (PREAD, LIMIT)]
    beside = ", ".join(f"{name} {median(found) * 1e3:.1f} ms" for name, found in others if found)
    return _judged(
        6,
        "worst stall of a ticker",
        "<= 10 ms",
        spread(arms.get(READER, ()), "stall"),
        lambda stall: (stall.median <= 0.010, f"{stall.median * 1e3:.1f} ms (in the same run: {beside or 'nothing'})"),
        READER,
    )


def _judged(
    line: int,
    what: str,
    threshold: str,
    measured: Spread | None,
    judge: Callable[[Spread], tuple[bool, str]],
    arm: str,
) -> Verdict:
    if measured is None:
        return Verdict(line, what, threshold, f"nothing ({arm} or the reader was not measured)", None)
    met, value = judge(measured)
    return Verdict(line, what, threshold, value, met)


def _ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
