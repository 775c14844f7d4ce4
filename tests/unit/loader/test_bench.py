# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from support.files import floats, write_sharded, write_tensors

from weight_readers import UnknownReaderError
from weight_readers_loader import open_checkpoint
from weight_readers_loader.commands import bare_reads as limit
from weight_readers_loader.commands import bench as command
from weight_readers_loader.commands.bench import LIMIT, Bench, Sample, bench


def sample(seconds: float) -> Sample:
    return Sample(seconds=seconds, storage_bytes=None, anon_beyond=0)


def made(**samples: list[Sample]) -> Bench:
    return Bench(
        reference="m", format="safetensors", files=1, tensors=1, nbytes=1 << 20, rounds=2, cold=False,
        into_existing=False, owned=False, picked="one", samples=samples,
    )  # fmt: skip


@pytest.mark.parametrize("into_existing", [False, True])
def test_every_reader_and_the_limit_are_measured_once_a_round(tmp_path: Path, into_existing: bool) -> None:
    write_sharded(tmp_path, 3)
    heard: list[str] = []
    found = bench(str(tmp_path), rounds=3, readers=["safetensors"], into_existing=into_existing, say=heard.append)
    assert {name: len(each) for name, each in found.samples.items()} == {"safetensors": 3, LIMIT: 3}
    assert (found.files, found.tensors, found.nbytes) == (3, 3, 24)
    assert len(heard) == 6


def test_readers_take_turns_and_each_begins_a_round(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2)
    heard: list[str] = []
    bench(str(tmp_path), rounds=2, readers=["safetensors"], say=heard.append)
    order = [line.split()[4] for line in heard]
    assert order == ["safetensors", LIMIT, LIMIT, "safetensors"]


def test_cold_files_are_evicted_before_each_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_sharded(tmp_path, 2)
    evicted: list[str] = []
    monkeypatch.setattr(command, "_evict", lambda paths: evicted.extend(paths))
    found = bench(str(tmp_path), rounds=2, readers=["safetensors"], cold=True)
    assert [str(shard) for shard in shards] * 4 == evicted
    assert found.cold


def test_the_result_is_plain_data_and_lines(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2)
    found = bench(str(tmp_path), rounds=2, readers=["safetensors"], owned=True)
    document = json.loads(json.dumps(found.to_json()))
    assert document["fastest"] == "safetensors"
    assert document["times_fastest"]["safetensors"] == [1, 1, 1]
    lines = found.lines()
    assert lines[0] == f"{tmp_path}: safetensors, 2 tensors in 2 files, 16 B"
    assert lines[1].startswith("one tensor after the other, every page touched, owned; read once before; 2 interleaved")


def test_ratios_are_taken_within_rounds_to_the_fastest_reader_whatever_the_limit_does() -> None:
    found = made(one=[sample(1), sample(4)], two=[sample(2), sample(12)], limit=[sample(0.5), sample(2)])
    assert found.fastest == "one"
    assert found.times_fastest("two") == (2.5, 2, 3)
    assert found.times_fastest(LIMIT) == (0.5, 0.5, 0.5)


def test_a_reader_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    write_sharded(tmp_path, 1)
    with pytest.raises(UnknownReaderError, match="sfaetensors"):
        bench(str(tmp_path), readers=["sfaetensors"])


def test_rounds_begin_at_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rounds must be at least 1, not 0"):
        bench(str(tmp_path), rounds=0)


def test_existing_tensors_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sharded(tmp_path, 2)
    monkeypatch.setattr(command, "_available_memory", lambda: 15)
    with pytest.raises(ValueError, match="existing tensors take 16 B, and 15 B of memory are available"):
        bench(str(tmp_path), into_existing=True)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this platform has no preadv")
def test_the_limit_reads_all_tensors_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "CHUNK_BYTES", 12)
    values = {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "empty": [], "b": [6.0], "c": [7.0, 8.0]}
    write_tensors(tmp_path / "model.safetensors", {n: ("F32", [len(v)], floats(*v)) for n, v in values.items()})
    metas = list(open_checkpoint(tmp_path).tensors.values())
    targets = {meta.name: torch.zeros(meta.shape) for meta in metas}
    limit.bare_reads(metas, targets)
    assert values == {name: tensor.tolist() for name, tensor in targets.items()}
    limit.bare_reads(metas, None)
