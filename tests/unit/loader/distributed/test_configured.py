# SPDX-License-Identifier: Apache-2.0
"""What a configuration says of ranks: `enable_broadcast_weight_load`, which an argument overrules."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import rank_jobs
from support.files import write_tensors
from support.ranks import Ranks, done
from support.tensors import tensor

from weight_readers import ConfigError
from weight_readers_loader.distributed import open_distributed

pytest.importorskip("weight_readers_threaded")
BROADCAST = {"enable_broadcast_weight_load": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tensors(tmp_path / "model.safetensors", {f"t{n}": tensor("F32", 8, 16, seed=n) for n in range(2)})


def test_the_configuration_asks_for_a_broadcast(two: Ranks, path: Path) -> None:
    reports = [report for _, report, _ in done(two.run(rank_jobs.read, path, None, config=BROADCAST))]
    assert [report.how for report in reports] == ["broadcast"] * 2
    assert reports[0].read_by_rank == {0: 1024, 1: 0}


def test_an_argument_overrules_it(two: Ranks, path: Path) -> None:
    reports = [report for _, report, _ in done(two.run(rank_jobs.read, path, "partition", config=BROADCAST))]
    assert reports[0].read_by_rank == {0: 512, 1: 512}


@pytest.mark.parametrize("config", [None, {"enable_broadcast_weight_load": False}])
def test_without_either_it_says_what_there_is(two: Ranks, path: Path, config: object) -> None:
    for result in two.run(rank_jobs.read, path, None, config=config):
        assert isinstance(result, ConfigError) or "ConfigError" in str(result)
        assert "broadcast, partition, slices" in str(result)


def test_without_a_group_it_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="no process group was made in this process: start the ranks with torchrun"):
        open_distributed(path)
