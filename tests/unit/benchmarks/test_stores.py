# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import stores

MIB = 1 << 20


def test_both_arms_fill_the_parameters_from_disk(tmp_path: Path) -> None:
    pytest.importorskip("runai_model_streamer")
    figures = stores.measure("warm", tmp_path, 2 * MIB, 1)
    assert {name: len(each) for name, each in figures.items()} == dict.fromkeys(stores.ARMS, 1)
    assert all(seconds > 0 for each in figures.values() for seconds, _ in each)


@pytest.mark.parametrize(
    ("seconds", "nbytes", "met"),
    [(1.09, 59 * MIB, ["met", "met"]), (1.11, 61 * MIB, ["NOT MET", "NOT MET"])],
)
def test_time_and_memory_are_judged_by_the_median_ratio(seconds: float, nbytes: int, met: list[str]) -> None:
    figures = {stores.OURS: [(seconds, nbytes), (0.1, 0), (9, 99 * MIB)], stores.PEER: [(1.0, 100 * MIB)] * 3}
    said = stores.lines("s3", {name: [(float(s), float(b)) for s, b in each] for name, each in figures.items()})
    assert [f"at most 1.1: {met[0]}", f"at most 0.6: {met[1]}"] == [line.split(", ")[-1] for line in said[-2:]]
    assert f"s3: {stores.OURS}: {seconds:.2f} s (0.10 to 9.00)" in said[0]
