# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import many_tensors
from safetensors import safe_open


def test_the_checkpoint_has_its_tensors_in_its_shards_and_every_arm_finds_them(tmp_path: Path) -> None:
    folder = many_tensors.write(tmp_path, 10, 3)
    shards = sorted(folder.glob("*.safetensors"))
    held = [len(safe_open(path, framework="pt").keys()) for path in shards]
    assert (len(shards), sum(held)) == (3, 10)
    seconds = many_tensors.measure(folder, 10, 2)
    assert {name: len(figures) for name, figures in seconds.items()} == dict.fromkeys(many_tensors.ARMS, 2)


def test_an_arm_that_finds_other_tensors_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="found 4 of 5 tensors"):
        many_tensors.measure(many_tensors.write(tmp_path, 4, 1), 5, 1)


@pytest.mark.parametrize(("ours", "verdict"), [(2.9, "under 3: met"), (3.1, "under 3: NOT MET")])
def test_the_ratio_is_judged_by_the_median_of_the_rounds(ours: float, verdict: str) -> None:
    seconds = {many_tensors.PEER: [1.0, 1.0, 1.0], many_tensors.OPENED: [ours, 0.1, 99.0]}
    peer, opened = many_tensors.lines(seconds)
    assert "under" not in peer
    assert opened.startswith(
        f"open_checkpoint: {ours:.3f} s (0.100 to 99.000) of CPU, {ours:.2f} (0.10 to 99.00) times"
    )
    assert opened.endswith(verdict)
