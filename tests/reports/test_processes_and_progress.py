# SPDX-License-Identifier: Apache-2.0
"""Public reports about threads, failing workers, interrupts and what is written while a load goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import slow_reader
from support.commands import environment, run
from support.files import floats, write_sharded, write_tensors

import weight_readers
from weight_readers import (
    CheckpointError,
    CheckpointProblems,
    FileChangedError,
    MissingTensorError,
    PluginContractError,
    TruncatedFileError,
)
from weight_readers_loader import open_checkpoint

PREFETCH = {"prefetch": 4}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an installed reader that fails as its options say."""
    folder, _ = slow_reader.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    weight_readers.refresh()
    yield slow_reader.NAME
    monkeypatch.undo()
    weight_readers.refresh()


def shards(folder: Path, count: int = 5) -> list[Path]:
    """Shards of 64 KiB, with the tensors ``t1`` to ``t5``."""
    paths = [folder / f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    for number, path in enumerate(paths, 1):
        write_tensors(path, {f"t{number}": ("F32", [16384], floats(*([number] * 16384)))})
    return paths


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def consume(weights: Any, *, seconds_each: float) -> list[str]:
    names = []
    for name, _ in weights:
        names.append(name)
        time.sleep(seconds_each)
    return names


@pytest.mark.parametrize("seconds_each", [0, 0.05], ids=["a fast consumer", "a slow consumer"])
class TestB120AFailureEndsTheLoad:
    """Whatever fails, and wherever: the error names file and tensor, none is missing in silence, no thread is left."""

    @pytest.mark.parametrize("options", [{}, PREFETCH], ids=["no thread", "4 threads"])
    @pytest.mark.parametrize("number", [3, 5], ids=["the third shard", "the last shard"])
    def test_a_shard_that_is_cut_when_it_is_opened(
        self, number: int, options: dict[str, Any], seconds_each: float, tmp_path: Path
    ) -> None:
        path = shards(tmp_path)[number - 1]
        cut(path)
        with pytest.raises(TruncatedFileError) as failed:
            consume(open_checkpoint(tmp_path, reader_options=options).iter_weights(), seconds_each=seconds_each)
        assert failed.value.path == str(path)

    @pytest.mark.parametrize("options", [{}, PREFETCH, {"copy": True}], ids=["no thread", "4 threads", "copy"])
    @pytest.mark.parametrize("number", [3, 5], ids=["the third shard", "the last shard"])
    def test_a_shard_that_is_cut_during_the_load(
        self, number: int, options: dict[str, Any], seconds_each: float, tmp_path: Path
    ) -> None:
        path = shards(tmp_path)[number - 1]
        weights = open_checkpoint(tmp_path, reader_options=options).iter_weights()
        assert next(weights)[0] == "t1"
        cut(path)
        with pytest.raises(CheckpointError) as failed:
            consume(weights, seconds_each=seconds_each)
        assert failed.value.path == str(path)

    @pytest.mark.parametrize("options", [{}, PREFETCH], ids=["no thread", "4 threads"])
    def test_a_shard_that_is_gone_before_it_is_opened(
        self, options: dict[str, Any], seconds_each: float, tmp_path: Path
    ) -> None:
        path = shards(tmp_path)[2]
        checkpoint = open_checkpoint(tmp_path, reader_options=options)
        path.unlink()
        with pytest.raises(FileChangedError) as failed:
            consume(checkpoint.iter_weights(), seconds_each=seconds_each)
        assert (failed.value.path, failed.value.found) == (str(path), "nothing there")

    @pytest.mark.parametrize("kind", [MemoryError, RuntimeError, slow_reader.Stop])
    @pytest.mark.parametrize("at", ["t3", "t5"])
    def test_a_reader_that_raises(
        self, kind: type[BaseException], at: str, seconds_each: float, tmp_path: Path, slow: str
    ) -> None:
        shards(tmp_path)
        checkpoint = open_checkpoint(tmp_path, reader=slow, reader_options={"fail": kind.__name__, "at": at})
        with pytest.raises(kind, match=f"at {at}"):
            consume(checkpoint.iter_weights(), seconds_each=seconds_each)

    def test_a_reader_that_ends_early_in_silence(self, seconds_each: float, tmp_path: Path, slow: str) -> None:
        paths = shards(tmp_path)
        checkpoint = open_checkpoint(tmp_path, reader=slow, reader_options={"fail": "end", "at": "t3"})
        with pytest.raises(MissingTensorError, match="reader 'slow' ended early") as failed:
            consume(checkpoint.iter_weights(), seconds_each=seconds_each)
        error = failed.value
        assert (error.path, error.tensor) == (str(paths[2]), "t3")
        assert (error.expected, error.found) == ("5 tensors", "2")


@pytest.mark.parametrize("fail", ["name", "twice", "dtype", "shape"])
def test_b120_a_reader_that_hands_out_something_else_is_found_out(fail: str, tmp_path: Path, slow: str) -> None:
    shards(tmp_path)
    target = {f"t{n}": torch.zeros(16384) for n in range(1, 6)}
    checkpoint = open_checkpoint(tmp_path, reader=slow, reader_options={"fail": fail, "at": "t3"})
    with pytest.raises(PluginContractError, match="reader 'slow' yielded"):
        checkpoint.load_into(target)
    assert not target["t4"].any()


def test_b120_a_load_that_fails_in_between_leaves_a_meta_module_alone(tmp_path: Path, slow: str) -> None:
    shards(tmp_path)
    module = torch.nn.Module()
    for number in range(1, 6):
        module.register_parameter(f"t{number}", torch.nn.Parameter(torch.empty(16384, device="meta")))
    checkpoint = open_checkpoint(tmp_path, reader=slow, reader_options={"fail": "MemoryError", "at": "t3"})
    with pytest.raises(MemoryError):
        checkpoint.load_into(module)
    assert all(parameter.is_meta for parameter in module.parameters())


def test_b120_all_shards_that_are_cut_are_in_one_error(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    for path in (paths[1], paths[3]):
        cut(path)
    with pytest.raises(CheckpointProblems) as failed:
        open_checkpoint(tmp_path)
    assert [problem.path for problem in failed.value.problems] == [str(paths[1]), str(paths[3])]


@pytest.mark.parametrize("stop", ["close", "raise"])
def test_b121_a_consumer_that_stops_stops_the_threads(stop: str, tmp_path: Path) -> None:
    shards(tmp_path)
    weights = open_checkpoint(tmp_path, reader_options=PREFETCH).iter_weights()
    next(weights)
    if stop == "close":
        weights.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            weights.throw(KeyboardInterrupt)
    assert not [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all threads that are started."""
    names: list[str] = []
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noting)
    return names


class TestB124AndB126ThreadsAreFewUnlessAskedFor:
    """The default reads with no thread of its own: cores, ranks and file systems cannot make it too many."""

    MOST_FOR_HEADERS = 8

    @pytest.mark.parametrize("variables", [{}, {"LOCAL_WORLD_SIZE": "8", "OMP_NUM_THREADS": "64"}])
    def test_a_load_starts_only_the_one_that_watches_memory(
        self, variables: dict[str, str], tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shards(tmp_path)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        checkpoint = open_checkpoint(tmp_path, reader="safetensors")
        started.clear()
        checkpoint.state_dict()
        assert started == ["memory-sampler"]
        checkpoint.get_tensor("t1")
        assert started == ["memory-sampler"]

    @pytest.mark.parametrize("count", [1, 3, 200])
    def test_headers_are_read_by_no_more_than_there_are_files_nor_than_a_few(
        self, count: int, tmp_path: Path, started: list[str]
    ) -> None:
        write_sharded(tmp_path, count)
        assert len(open_checkpoint(tmp_path, reader="safetensors").tensors) == count
        assert 1 <= len(started) <= min(count, self.MOST_FOR_HEADERS)

    def test_threads_that_were_asked_for_are_those(self, tmp_path: Path, started: list[str]) -> None:
        shards(tmp_path)
        checkpoint = open_checkpoint(tmp_path, reader_options={"prefetch": 3})
        started.clear()
        assert len(dict(checkpoint.iter_weights())) == 5
        assert len(started) == 3


_RANK = """
import sys
import torch.distributed as dist
from weight_readers_loader import open_checkpoint
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
open_checkpoint(folder).state_dict(show_progress=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_b127_of_two_ranks_of_a_process_group_only_the_first_writes(tmp_path: Path) -> None:
    """Ranks given to the group alone, not in the environment."""
    write_sharded(tmp_path / "model", 3)
    command = [sys.executable, "-c", _RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), str(tmp_path / "model")],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    written = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], written
    assert "safetensors: 100%" in written[0]
    assert "safetensors:" not in written[1]


def test_b128_a_log_file_gets_a_line_per_ten_percent_and_a_last_one(tmp_path: Path) -> None:
    write_sharded(tmp_path / "model", 500)
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        done = run(
            "load", tmp_path / "model", "--progress", capture_output=False, stdout=subprocess.DEVNULL, stderr=stderr
        )
    assert done.returncode == 0
    written = log.read_bytes()
    lines = written.splitlines()
    assert 1 < len(lines) < 15
    assert b"100%" in lines[-1]
    assert b"\r" not in written
    assert b"\x1b" not in written


def test_b128_nothing_is_written_where_nobody_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_sharded(tmp_path, 3)
    open_checkpoint(tmp_path).state_dict()
    open_checkpoint(tmp_path).load_into({f"t{n}": torch.zeros(2) for n in (1, 2, 3)})
    assert capfd.readouterr() == ("", "")
