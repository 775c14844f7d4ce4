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
from support.commands import wait_until
from support.files import write_tensors
from support.rank_jobs import Each
from support.ranks import Ranks, done
from support.tensors import tensor

from weight_readers import (
    CheckpointNotFoundError,
    FileChangedError,
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
EVERY = ("broadcast", "partition", "slices")
READ_BY_ALL = ("partition", "slices")
READERS = [("broadcast", 0), ("partition", 0), ("partition", 1), ("slices", 0), ("slices", 1)]
"""Ways to load, and a rank that reads in it."""


def checkpoint(folder: Path, shards: int = 2) -> Path:
    """Shards in a folder of their own: as on the disk of one machine."""
    folder.mkdir()
    for shard in range(1, shards + 1):
        tensors = {f"s{shard}.t{number}": tensor("F32", 8, 16, seed=(shard, number)) for number in range(2)}
        write_tensors(folder / f"model-{shard:05}-of-{shards:05}.safetensors", tensors)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> Each:
    return Each([checkpoint(tmp_path / "rank0"), checkpoint(tmp_path / "rank1")])


def same_on_all(results: list[Any], kind: type[Exception], rank: int, *said: str) -> None:
    assert [type(result) for result in results] == [kind] * len(results), results
    assert {result.rank for result in results} == {rank}
    assert len({str(result) for result in results}) == 1
    for word in (f"rank {rank}", *said):
        assert word in str(results[0])


@pytest.mark.parametrize(("how", "who"), READERS)
def test_a_truncated_file_of_one_rank(two: Ranks, folders: Each, how: str, who: int) -> None:
    broken = folders[who] / "model-00002-of-00002.safetensors"
    os.truncate(broken, broken.stat().st_size - 8)
    results = two.run(rank_jobs.read, folders, how, seconds=SOON)
    same_on_all(results, TruncatedFileError, who, str(broken))
    assert {(result.path, result.found) for result in results} == {(str(broken), results[who].found)}


@pytest.mark.parametrize(("how", "who"), READERS)
def test_a_missing_file_of_one_rank(two: Ranks, folders: Each, how: str, who: int) -> None:
    (folders[who] / "model-00002-of-00002.safetensors").unlink()
    same_on_all(two.run(rank_jobs.read, folders, how, seconds=SOON), MissingShardError, who, "model-00002")


@pytest.mark.parametrize(("how", "who"), READERS)
def test_a_missing_folder_of_one_rank(two: Ranks, tmp_path: Path, folders: Each, how: str, who: int) -> None:
    folders[who] = tmp_path / "none"
    results = two.run(rank_jobs.read, folders, how, seconds=SOON)
    same_on_all(results, CheckpointNotFoundError, who, str(tmp_path / "none"))


@pytest.mark.parametrize(("how", "who"), READERS)
def test_a_file_of_one_rank_that_shrinks_in_the_middle(two: Ranks, tmp_path: Path, how: str, who: int) -> None:
    folders = Each([checkpoint(tmp_path / f"rank{rank}", 6) for rank in range(2)])
    options = {"reader": "threaded", "bucket_bytes": 512, "mark": tmp_path / "at", "pause": 0.5}
    two.start(rank_jobs.paced, folders, how, **options)
    wait_until((tmp_path / f"at-{who}").exists)
    for path in folders[who].iterdir():
        os.truncate(path, path.stat().st_size - 520)
    results = two.results(SOON)
    assert {type(result) for result in results} <= {FileChangedError, TruncatedFileError}
    same_on_all(results, type(results[0]), who, str(folders[who]))


@pytest.mark.parametrize("how", READ_BY_ALL)
def test_another_file_on_one_rank(two: Ranks, folders: Each, how: str) -> None:
    other = folders[1] / "model-00001-of-00002.safetensors"
    write_tensors(other, {"s1.t0": tensor("F32", 8, 16), "s1.t1": tensor("F32", 8, 17)})
    same_on_all(two.run(rank_jobs.read, folders, how, seconds=SOON), PlanMismatchError, 1, str(other), "bytes")


@pytest.mark.parametrize("how", READ_BY_ALL)
def test_other_tensors_in_a_file_of_the_same_size(two: Ranks, folders: Each, how: str) -> None:
    other = folders[1] / "model-00001-of-00002.safetensors"
    write_tensors(other, {"s1.t0": tensor("F32", 8, 16), "s1.t9": tensor("F32", 8, 16)})
    same_on_all(two.run(rank_jobs.read, folders, how, seconds=SOON), PlanMismatchError, 1, "s1.t9", "s1.t1")


@pytest.mark.parametrize("how", READ_BY_ALL)
def test_files_in_another_order_on_one_rank(two: Ranks, folders: Each, how: str) -> None:
    """Each of the two holds what the other one has elsewhere."""
    one, other = sorted(folders[1].iterdir())
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    same_on_all(two.run(rank_jobs.read, folders, how, seconds=SOON), PlanMismatchError, 1, str(one), "s2.t0", "s1.t0")


@pytest.mark.parametrize("how", READ_BY_ALL)
def test_another_commit_on_one_rank(two: Ranks, tmp_path: Path, how: str) -> None:
    commits = ["a" * 40, "b" * 40]
    (tmp_path / "snapshots").mkdir()
    folders = Each([checkpoint(tmp_path / "snapshots" / commit) for commit in commits])
    results = two.run(rank_jobs.read, folders, how, seconds=SOON)
    same_on_all(results, PlanMismatchError, 1, *commits)


def test_files_of_a_rank_that_is_sent_everything_are_not_looked_at(two: Ranks, folders: Each) -> None:
    for path in folders[1].iterdir():
        path.write_bytes(b"no weights")
    results = done(two.run(rank_jobs.read, folders, "broadcast", seconds=SOON))
    assert results[0][0] == results[1][0]


@pytest.mark.parametrize("how", EVERY)
def test_names_that_a_rank_lists_in_another_order_are_the_same_plan(two: Ranks, tmp_path: Path, how: str) -> None:
    folders = Each([checkpoint(tmp_path / f"rank{rank}") for rank in range(2)])
    results = done(two.run(rank_jobs.read_listed_backwards, folders, how, seconds=SOON))
    assert list(results[0][0]) == list(results[1][0])
    assert how == "slices" or results[0][0] == results[1][0]


@pytest.mark.parametrize("difference", [{"how": Each(["broadcast", "partition"])}, {"bucket_bytes": Each([64, 65])}])
def test_ranks_that_are_told_different_things(two: Ranks, folders: Each, difference: dict[str, Any]) -> None:
    options = {"how": "partition", **difference}
    same_on_all(two.run(rank_jobs.read, folders, seconds=SOON, **options), PlanMismatchError, 1)


@pytest.mark.parametrize("how", EVERY)
def test_ranks_that_want_different_tensors(two: Ranks, folders: Each, how: str) -> None:
    filters = Each(["s1.t0".__eq__, "s1.t1".__eq__])
    results = two.run(rank_jobs.read, folders, how, key_filter=filters, seconds=SOON)
    same_on_all(results, PlanMismatchError, 1, "other tensors")


def test_an_error_of_another_kind_is_told_in_words(two: Ranks, folders: Each) -> None:
    results = two.run(rank_jobs.read, folders, "slices", num_weight_load_threads=Each([None, 0]), seconds=SOON)
    assert [type(result) for result in results] == [RankFailedError, ValueError]
    assert results[0].rank == 1
    assert "num_weight_load_threads" in str(results[0])


def test_the_group_goes_on_after_a_failure(two: Ranks, folders: Each, tmp_path: Path) -> None:
    jobs = [(folders[0], {"how": how}) for how in EVERY]
    broken = tmp_path / "none"
    results = two.run(rank_jobs.in_turns, [jobs[0], (broken, {"how": "partition"}), *jobs])
    for found in results:
        kinds = [isinstance(each, CheckpointNotFoundError) for each in found]
        assert kinds == [False, True, False, False, False]
    assert results[0][0][0] == results[1][3][0]


def test_a_rank_that_does_not_come_is_named(folders: Each) -> None:
    with Ranks(2) as ranks:
        results = ranks.run(rank_jobs.late, folders, "broadcast", pause=4, who=1, timeout=1.5)
        same_on_all(results[:1], RankLaggingError, 1, "has not begun")
        assert isinstance(results[1], RankLaggingError)


@pytest.mark.parametrize(
    ("size", "how", "victim"),
    [(4, "broadcast", 3), (2, "broadcast", 0), (3, "partition", 1), (2, "slices", 1), (2, "slices", 0)],
)
def test_a_rank_that_is_killed_in_the_middle(tmp_path: Path, size: int, how: str, victim: int) -> None:
    path = checkpoint(tmp_path / "m", 20)
    with Ranks(size) as ranks:
        ranks.start(rank_jobs.paced, path, how, mark=tmp_path / "at", pause=0.3, bucket_bytes=512)
        wait_until((tmp_path / f"at-{0 if how == 'broadcast' else victim}").exists)
        time.sleep(0.5)
        ranks.kill(victim)
        results = ranks.results(SOON)
    assert results.pop(victim) == "dead"
    for result in results:
        assert isinstance(result, RankLostError), result
        assert f"rank {victim}" in str(result) or victim == 0
        if victim != 0 and how != "broadcast":  # one that reads, while the store is there that says what
            assert f"during the load, at {path}{os.sep}model-000" in str(result)
    assert ranks.left == []


@pytest.fixture
def slow_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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


def test_a_rank_that_is_killed_while_another_one_reads_a_single_tensor(slow_path: Path) -> None:
    path = write_tensors(slow_path / "m.safetensors", {"t": tensor("F32", 1024, 64)})
    with Ranks(2) as ranks:
        options = {"reader": "slow", "reader_options": {"seconds_per_kib": 0.02}}
        ranks.start(rank_jobs.late, path, "broadcast", pause=0, who=0, **options)
        time.sleep(2)
        ranks.kill(0)
        results = ranks.results(SOON)
    assert results[0] == "dead"
    assert isinstance(results[1], RankLostError)


def test_an_interrupt_of_one_rank_ends_all(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", 20)
    with Ranks(2) as ranks:
        for how, who in (("broadcast", 1), ("partition", 1), ("slices", 0)):
            mark = tmp_path / how
            ranks.start(rank_jobs.paced, path, how, mark=mark, pause=0.3, bucket_bytes=512)
            wait_until(Path(f"{mark}-{0 if how == 'broadcast' else who}").exists)
            time.sleep(0.5)
            ranks.signal(who, signal.SIGINT)
            results = ranks.results(SOON)
            assert isinstance(results.pop(who), KeyboardInterrupt)
            assert isinstance(results[0], RankFailedError)
            assert f"rank {who} was interrupted" in str(results[0])


def test_every_error_that_is_told_is_public() -> None:
    assert {kind.__name__ for kind in (PlanMismatchError, RankFailedError, RankLostError)} <= set(errors.__all__)
