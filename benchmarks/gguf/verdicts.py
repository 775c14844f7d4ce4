# SPDX-License-Identifier: Apache-2.0
"""What the GGUF plugin has promised, held against what was measured.

A ratio is the median over the rounds of (the other's time / ours in the same round); where the other ran once, of the
medians.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.gguf import arms, device, opening
from benchmarks.settings import MIB
from benchmarks.summary import ByArm, Spread, spread, times_of
from benchmarks.verdicts import Verdict

BESIDE_C = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_TIMES_GGUF, _TIMES_C = 2.0, 1.0
_VOCABULARY_TIMES, _TENSORS_TIMES, _HELD = 100.0, 5.0, 20 * MIB

ByWork = Mapping[str, Mapping[str, ByArm]]
"""Results by work (or file), then by type (or ""), then by arm."""


def verdicts(results: ByWork) -> list[Verdict]:
    """One for each condition; of what a run left out it says so."""
    fresh, into = results.get("fresh", {}), results.get("into", {})
    vocabulary, tensors = (results.get("opening", {}).get(name, {}) for name in ("vocabulary", "tensors"))
    return [
        _opened(vocabulary, _VOCABULARY_TIMES, "opening the vocabulary file, times gguf.GGUFReader"),
        _memory(vocabulary),
        _opened(tensors, _TENSORS_TIMES, "opening the many-tensors file, times gguf.GGUFReader"),
        _slowest(fresh, arms.GGUF, _TIMES_GGUF, "every type, times gguf-py as it is"),
        _slowest(fresh, arms.GGUF_THREADS, _TIMES_GGUF, "every type, times gguf-py in as many threads"),
        *(_beside_c(fresh, name, "fresh") for name in BESIDE_C),
        *(_beside_c(into, name, "into") for name in BESIDE_C),
        _bandwidth(results.get("device", {})),
    ]


def ratio(found: ByArm, other: str, ours: str) -> Spread | None:
    """How many times our time the other's is."""
    return times_of(found.get(other, ()), found.get(ours, ()))


def _opened(found: ByArm, floor: float, what: str) -> Verdict:
    one, other = (spread(found.get(arm, ()), "seconds") for arm in (opening.OURS, opening.READER))
    threshold = f">= {floor:g}"
    if one is None or other is None:
        return Verdict(2, what, threshold, "nothing", None)
    times = other.median / one.median
    return Verdict(
        2, what, threshold, f"{times:.0f} ({other.median:.3f} s / {one.median * 1e3:.1f} ms)", times >= floor
    )


def _memory(found: ByArm) -> Verdict:
    peak = spread(found.get(opening.OURS, ()), "peak")
    what, threshold = "memory of opening the vocabulary file, peak", f"<= {_HELD / MIB:.0f} MiB"
    if peak is None:
        return Verdict(2, what, threshold, "nothing", None)
    return Verdict(2, what, threshold, f"{peak.high / MIB:.1f} MiB at most", peak.high <= _HELD)


def _slowest(types: Mapping[str, ByArm], other: str, floor: float, what: str) -> Verdict:
    found = {name: ratio(by_arm, other, arms.OURS) for name, by_arm in types.items()}
    known = {name: each for name, each in found.items() if each is not None}
    threshold = f">= {floor:g}"
    if not known:
        return Verdict(3, what, threshold, "nothing", None)
    least = min(known, key=lambda name: known[name].median)
    below = [name for name, each in known.items() if each.median < floor]
    value = f"least is {least} at {_times(known[least])}, of {len(known)} types"
    value += f"; below: {', '.join(below)}" if below else ""
    return Verdict(3, what, threshold, value, not below)


def _beside_c(types: Mapping[str, ByArm], name: str, work: str) -> Verdict:
    times = ratio(types.get(name, {}), arms.LIBGGUF, arms.OURS)
    verdict = Verdict(3, f"{name} {work}, times libgguf", f">= {_TIMES_C:g}", "nothing", None)
    return verdict if times is None else replace(verdict, value=_times(times), met=times.median >= _TIMES_C)


def _bandwidth(types: Mapping[str, ByArm]) -> Verdict:
    """No threshold was promised: the figure is what is asked for."""
    found = {name: ratio(by_arm, device.COPY, device.DEQUANTIZE) for name, by_arm in types.items()}
    known = [each.median for each in found.values() if each is not None]
    what, threshold = "dequantization on the GPU, bandwidth over that of a copy", "a figure"
    if not known:
        return Verdict(8, what, threshold, device.absent() or "nothing", None)
    return Verdict(8, what, threshold, f"{min(known):.2f} to {max(known):.2f} over {len(known)} types", True)


def _times(found: Spread) -> str:
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"
