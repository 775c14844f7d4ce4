# SPDX-License-Identifier: Apache-2.0
"""What happens to one rank ends the load on all of them: the right error, with the rank and the file, and soon."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import rank_jobs, slow_reader
from support.commands import is_alive, wait_until
from support.files import write_tensors
from support.ranks import Ranks, done
from support.tensors import tensor

from weight_readers import (
    CheckpointNotFoundError,
    MissingShardError,
    PlanMismatchError,
    RankFailedError,
    RankLaggingError,
    RankLostError,
    TruncatedFileError,
    errors,
)

pytest.importorskip("weight_readers_threaded")
SOON = 15
"""Seconds: the bound of the whole load, failure and all."""
READ_BY_ALL = ("partition", "slices")


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


def checkpoint(folder: Path, **first: Any) -> Path:
    """Two shards in a folder of their own: as on the disk of one machine."""
    folder.mkdir()
    for shard in (1, 2):
        tensors = {f"s{shard}.t{number}": tensor("F32", 8, 16, seed=(shard, number)) for number in range(2)}
        write_tensors(folder / f"model-0000{shard}-of-00002.safetensors", tensors)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [checkpoint(tmp_path / "rank0"), checkpoint(tmp_path / "rank1")]


def same_on_all(results: list[Any], kind: type[Exception], rank: int, *said: str) -> None:
    assert [type(result) for result in results] == [kind] * len(results), results
    assert {result.rank for result in results} == {rank}
    assert len({str(result) for result in results}) == 1
    for word in (f"rank {rank}", *said):
        assert word in str(results[0])


@pytest.mark.parametrize("how", READ_BY_ALL)
def test_a_truncated_file_of_one_rank(two: Ranks, folders: list[Path], how: str) -> None:
    broken = folders[1] / "model-00002-of-00002.safetensors"
    os.truncate(broken, broken.stat().st_size - 8)
    results = two.run(rank_jobs.read, folders, how, seconds=SOON)
    same_on_all(results, TruncatedFileError, 1, str(broken))
    assert {(result.path, result.found) for result in results} == {(str(broken), results[1].found)}


@pytest.mark.parametrize("how", READ_BY_ALL)
def test_a_missing_file_of_one_rank(two: Ranks, folders: list[Path], how: str) -> None:
    (folders[1] / "model-00002-of-00002.safetensors").unlink()
    same_on_all(two.run(rank_jobs.read, folders, how, seconds=SOON), MissingShardError, 1, "model-00002")


def test_a_missing_folder_of_the_first_rank(two: Ranks, tmp_path: Path, folders: list[Path]) -> None:
    results = two.run(rank_jobs.read, [tmp_path / "none", folders[1]], "partition", seconds=SOON)
    same_on_all(results, CheckpointNotFoundError, 0, str(tmp_path / "none"))


@pytest.mark.parametrize("how", READ_BY_ALL)
def test_another_file_on_one_rank(two: Ranks, folders: list[Path], how: str) -> None:
    other = folders[1] / "model-00001-of-00002.safetensors"
    write_tensors(other, {"s1.t0": tensor("F32", 8, 16), "s1.t1": tensor("F32", 8, 17)})
    same_on_all(two.run(rank_jobs.read, folders, how, seconds=SOON), PlanMismatchError, 1, str(other), "bytes")


def test_other_tensors_in_a_file_of_the_same_size(two: Ranks, folders: list[Path]) -> None:
    other = folders[1] / "model-00001-of-00002.safetensors"
    write_tensors(other, {"s1.t0": tensor("F32", 8, 16), "s1.t9": tensor("F32", 8, 16)})
    same_on_all(two.run(rank_jobs.read, folders, "slices", seconds=SOON), PlanMismatchError, 1, "s1.t9", "s1.t1")


def test_another_commit_on_one_rank(two: Ranks, tmp_path: Path) -> None:
    commits = ["a" * 40, "b" * 40]
    (tmp_path / "snapshots").mkdir()
    folders = [checkpoint(tmp_path / "snapshots" / commit) for commit in commits]
    results = two.run(rank_jobs.read, folders, "partition", seconds=SOON)
    same_on_all(results, PlanMismatchError, 1, *commits)


def test_names_that_lie_in_another_order_on_disk_are_the_same_plan(two: Ranks, tmp_path: Path) -> None:
    folders = []
    for rank in range(2):
        folder = checkpoint(tmp_path / f"rank{rank}")
        for path in sorted(folder.iterdir(), reverse=bool(rank)):  # made anew, so listed anew
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
        folders.append(folder)
    results = done(two.run(rank_jobs.read, folders, "partition", seconds=SOON))
    assert results[0][0] == results[1][0]


@pytest.mark.parametrize("difference", [{"how": ["broadcast", "partition"]}, {"bucket_bytes": [64, 65]}])
def test_ranks_that_are_told_different_things(two: Ranks, folders: list[Path], difference: dict[str, Any]) -> None:
    options = {"how": "partition", **difference}
    same_on_all(two.run(rank_jobs.read, folders, seconds=SOON, **options), PlanMismatchError, 1)


def test_ranks_that_want_different_tensors(two: Ranks, folders: list[Path]) -> None:
    filters = ["s1.t0".__eq__, "s1.t1".__eq__]
    results = two.run(rank_jobs.read, folders, "broadcast", key_filter=filters, seconds=SOON)
    same_on_all(results, PlanMismatchError, 1, "other tensors")


def test_an_error_of_another_kind_is_told_in_words(two: Ranks, folders: list[Path]) -> None:
    results = two.run(rank_jobs.read, folders, "slices", num_weight_load_threads=[None, 0], seconds=SOON)
    assert [type(result) for result in results] == [RankFailedError, ValueError]
    assert results[0].rank == 1
    assert "num_weight_load_threads" in str(results[0])


def test_the_group_goes_on_after_a_failure(two: Ranks, folders: list[Path], tmp_path: Path) -> None:
    jobs = [(folders[0], {"how": how}) for how in ("broadcast", "partition", "slices")]
    broken = tmp_path / "none"
    results = two.run(rank_jobs.in_turns, [jobs[0], (broken, {"how": "partition"}), *jobs], seconds=30)
    for found in results:
        kinds = [isinstance(each, CheckpointNotFoundError) for each in found]
        assert kinds == [False, True, False, False, False]
    assert results[0][0][0] == results[1][3][0]


def test_one_rank_may_be_slower_than_the_time_out_of_collectives(tmp_path: Path, folders: list[Path]) -> None:
    """pytorch's time-out would end the broadcast that the others wait in (sgl-project/sglang#39128)."""
    with Ranks(2, timeout=2) as ranks:
        for who in range(2):
            results = done(ranks.run(rank_jobs.late, folders, "partition", seconds=20, pause=4, who=who))
            assert results[0][0] == results[1][0]


def test_a_rank_that_does_not_come_is_named(folders: list[Path]) -> None:
    with Ranks(2) as ranks:
        results = ranks.run(rank_jobs.late, folders, "broadcast", seconds=20, pause=6, who=1, timeout=1.5)
        same_on_all(results[:1], RankLaggingError, 1, "has not begun")
        assert isinstance(results[1], RankLaggingError)


@pytest.fixture
def slow_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader that takes its time, installed for ranks that are started from here on."""
    import sys

    import weight_readers

    for path in slow_reader.install(tmp_path / "site"):
        monkeypatch.syspath_prepend(str(path))
    sys.path_importer_cache.clear()
    weight_readers.refresh()
    yield tmp_path
    monkeypatch.undo()
    weight_readers.refresh()


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_rank_that_is_killed_in_the_middle(slow_path: Path, victim: int) -> None:
    path = write_tensors(slow_path / "m.safetensors", {f"t{n}": tensor("F32", 64, 16, seed=n) for n in range(40)})
    with Ranks(4) as ranks:
        pids = ranks.pids
        options = {"reader": "slow", "reader_options": {"seconds_per_kib": 0.05}, "bucket_bytes": 4096}
        ranks.start(rank_jobs.slow, path, "broadcast", mark=slow_path / "begun", **options)
        wait_until(lambda: all((slow_path / f"begun{rank}").exists() for rank in range(4)))
        time.sleep(1)
        ranks.kill(victim)
        results = ranks.results(SOON)
    assert results.pop(victim) == "dead"
    for result in results:
        assert isinstance(result, RankLostError), result
        assert f"rank {victim}" in str(result) or victim == 0
    assert not any(map(is_alive, pids))


def test_an_interrupt_of_one_rank_ends_all(slow_path: Path) -> None:
    path = write_tensors(slow_path / "m.safetensors", {f"t{n}": tensor("F32", 64, 16, seed=n) for n in range(40)})
    with Ranks(2) as ranks:
        options = {"reader": "slow", "reader_options": {"seconds_per_kib": 0.05}, "bucket_bytes": 4096}
        ranks.start(rank_jobs.slow, path, "broadcast", mark=slow_path / "begun", **options)
        wait_until(lambda: (slow_path / "begun1").exists())
        time.sleep(1)
        ranks.signal(1, signal.SIGINT)
        results = ranks.results(SOON)
    assert isinstance(results[0], RankFailedError)
    assert "rank 1 was interrupted" in str(results[0])
    assert isinstance(results[1], KeyboardInterrupt)


def test_every_error_that_is_told_is_public() -> None:
    assert {kind.__name__ for kind in (PlanMismatchError, RankFailedError, RankLostError)} <= set(errors.__all__)
