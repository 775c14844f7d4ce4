# SPDX-License-Identifier: Apache-2.0
"""Every type by every arm, in interleaved rounds within one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gguf.arms import ARMS, GGML_C, Arm, Floats
from benchmarks.gguf.blocks import Bytes, random_weight
from benchmarks.rounds import Result, orders

WORKS = {"fresh": "each makes its result, as users call it", "into": "into memory that exists and was written before"}

ByArm = dict[str, list[Result]]


def measure(work: str, name: str, arms: Sequence[str], *, rows: int, columns: int, rounds: int, verify: bool) -> ByArm:
    """Seconds of each arm in each round. With ``verify`` each result is compared with that of ggml's C code.

    Every arm runs once before the rounds: what is compiled or set up at the first call is in none of them.
    """
    packed, shape = random_weight(name, rows, columns), (rows, columns)
    able = [arm for arm in arms if ARMS[arm].takes(name) and (work == "fresh" or ARMS[arm].into is not None)]
    expected = ARMS[GGML_C].fresh(name, packed) if verify else None
    found: ByArm = {}
    calls = {arm: _call(work, ARMS[arm], name, packed, shape) for arm in able}
    for arm in able:
        fault = _fault(calls[arm], expected)
        found[arm] = [fault] if fault else []
    sound = [arm for arm in able if not found[arm]]
    for number, order in enumerate(orders(sound, rounds) if sound else ()):
        for arm in order:
            found[arm].append({"round": number, **_timed(calls[arm], rows * columns * 4)})
    return found


def _call(work: str, arm: Arm, name: str, packed: Bytes, shape: tuple[int, int]) -> Callable[[], Floats]:
    into = arm.into
    if work == "fresh" or into is None:
        return lambda: arm.fresh(name, packed)
    # Aligned as a parameter or a workspace is; numpy's arrays are to 16 bytes only.
    out: Floats = torch.zeros(shape).numpy()

    def call() -> Floats:
        into(name, packed, out)
        return out

    return call


def _fault(call: Callable[[], Floats], expected: Floats | None) -> dict[str, Any] | None:
    try:
        result = call()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if expected is not None and not np.array_equal(result.view(np.uint32), expected.view(np.uint32)):
        return {"error": "its result differs from that of ggml's C code"}
    return None


def _timed(call: Callable[[], Floats], nbytes: int) -> dict[str, Any]:
    begin = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - begin
    del result
    return {"seconds": seconds, "bytes": nbytes}
