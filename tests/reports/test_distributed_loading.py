# SPDX-License-Identifier: Apache-2.0
"""Public reports about one checkpoint and many ranks, and about file systems that ranks share.

| report | test |
|---|---|
| B084 | TestB084NetworkFileSystems |
| B086 | test_b086_a_rank_that_dies_of_a_mapped_file_is_reported_with_signal_rank_and_file |
| B088, B090 | test_mapping_and_lifetime.py |
| B110 | test_b110_a_plain_load_of_one_rank_waits_for_no_other |
| B124, B126 | test_processes_and_progress.py, test_threads_and_short_reads.py |
| B127 | test_b127_progress_is_told_by_the_first_rank_only, and test_processes_and_progress.py |
| B131 | test_b131_no_rank_reads_more_than_its_share |
| B132 | test_b132_a_rank_may_be_slower_than_the_time_out_of_collectives |
| B134 | test_b134_a_checkpoint_that_only_one_rank_has_in_its_cache |
| B135 | test_b135_a_dtype_that_gloo_refuses_is_sent |
| B168 | test_b168_all_ranks_load_the_commit_that_the_first_found |
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load, load_file
from support import rank_jobs
from support.commands import COMMAND, environment
from support.files import floats, write_index, write_tensors
from support.hub_models import sharded, write_cache
from support.hub_server import HubServer, commit_of
from support.rank_jobs import Each
from support.ranks import Ranks, done
from support.tensors import BITS, contents, tensor

from weight_readers import Environment, explain_selection

pytest.importorskip("weight_readers_threaded")
EVERY = ("broadcast", "partition", "slices")


class TestB084NetworkFileSystems:
    """A mapping is read by page faults there: 30 to 50 times slower than a copy."""

    def chosen(self, kind: str | None) -> tuple[str | None, str]:
        selection = explain_selection(format="safetensors", environment=Environment(filesystem=kind))
        return selection.chosen, str(selection)

    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "fuse.s3fs"])
    def test_they_are_read_without_a_mapping_and_explain_says_why(self, kind: str) -> None:
        name, said = self.chosen(kind)
        assert name == "threaded"
        assert "network file system" in said

    @pytest.mark.parametrize("kind", ["overlay", "ext4", "nobody-knows-it"])
    def test_others_are_read_as_without_that_fact(self, kind: str) -> None:
        assert self.chosen(kind)[0] == self.chosen(None)[0]


def started(folder: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    """``weight-readers load`` on two ranks, each with a parent that supervises it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [str(COMMAND), "load", *arguments],
            env=environment(RANK=str(rank), **common),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


_TARGETS = """
import mmap, os, torch

def targets():
    found = {name: torch.zeros(4096) for name in "ab"}
    if os.environ["RANK"] == "1":
        with open("scratch", "w+b") as file:
            file.truncate(16384)
            found[os.environ["BAD"]] = torch.frombuffer(mmap.mmap(file.fileno(), 16384), dtype=torch.float32)
            file.truncate(0)
    return found
"""
"""What is to be filled; of one rank a part lies in a mapped file that its storage does not have any more."""


@pytest.mark.parametrize("bad", ["a", "b"])
def test_b086_a_rank_that_dies_of_a_mapped_file_is_reported_with_signal_rank_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setenv("BAD", bad)
    for name in ("a", "b"):
        write_tensors(tmp_path / f"model/{name}.safetensors", {name: ("F32", [4096], floats(*[1.0] * 4096))})
    write_index(tmp_path / "model", {name: f"{name}.safetensors" for name in ("a", "b")})
    (tmp_path / "mine.py").write_text(_TARGETS)
    both = started(tmp_path, "model", "--slices", "--reader", "safetensors", "--into", "mine:targets", "--no-progress")
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [1, 135], errors
    assert f"the load of rank 1 died of SIGBUS (signal 7) while reading model/{bad}.safetensors" in errors[1]
    assert "rank 1" in errors[0]
    assert f"died during the load, at model/{bad}.safetensors" in errors[0]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tensor of every dtype, rows of which two ranks share."""
    path = tmp_path_factory.mktemp("every") / "m.safetensors"
    return write_tensors(path, {name: tensor(name, 4, 6, seed=name) for name in BITS})


def test_b110_a_plain_load_of_one_rank_waits_for_no_other(two: Ranks, every: Path) -> None:
    """A collective was run whenever a process group existed."""
    assert two.run(rank_jobs.alone, every, seconds=30)[0] == contents(load_file(every).items())


def test_b127_progress_is_told_by_the_first_rank_only(two: Ranks, every: Path, tmp_path: Path) -> None:
    for how in EVERY:
        told = two.run(rank_jobs.stderr_of, every, how, tmp_path)
        assert "100%" in told[0]
        assert told[1] == ""


@pytest.mark.parametrize(("how", "shares"), [("broadcast", (1, 0)), ("partition", (0.5, 0.5)), ("slices", (0.5, 0.5))])
def test_b131_no_rank_reads_more_than_its_share(
    two: Ranks, tmp_path: Path, how: str, shares: tuple[float, float]
) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": tensor("F32", 64, 2048, seed=n) for n in range(4)})
    total = 4 * 64 * 2048 * 4
    for (_, report, read), share in zip(two.run(rank_jobs.read, path, how, reader="threaded"), shares, strict=True):
        assert report.bytes_read <= (share + 0.02) * total
        assert read <= (share + 0.02) * total + (1 << 16)  # by the kernel's count, messages of the store included


def test_b132_a_rank_may_be_slower_than_the_time_out_of_collectives(tmp_path: Path) -> None:
    """Late, or at its files: pytorch's time-out would end the collective that the others wait in."""
    paths = [
        write_tensors(tmp_path / f"rank{rank}/m.safetensors", {"t": tensor("F32", 8, 16)}).parent for rank in range(2)
    ]
    with Ranks(2, timeout=2) as ranks:
        done(ranks.run(rank_jobs.late, Each(paths), "partition", pause=3, who=1))
        for how, who in (("broadcast", 0), ("partition", 1), ("slices", 0)):
            pause = Each([0, 0])
            pause[who] = 3
            results = done(ranks.run(rank_jobs.paced, Each(paths), how, mark=tmp_path / how, pause=pause))
            assert [list(held) for held, _, _ in results] == [["t"], ["t"]]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    server.put("own/model", sharded(tmp_path / "model"))
    with server.running():
        yield server


def held_by(results: list[object]) -> list[dict[str, object]]:
    return [held for held, _, _ in done(results)]  # type: ignore[misc]


def expected(files: dict[str, bytes]) -> dict[str, object]:
    found = {name: load(data) for name, data in files.items() if name.endswith(".safetensors")}
    return {name: held for tensors in found.values() for name, held in contents(tensors.items()).items()}


@pytest.mark.parametrize("how", EVERY)
def test_b134_a_checkpoint_that_only_one_rank_has_in_its_cache(
    two: Ranks, hub: HubServer, tmp_path: Path, how: str
) -> None:
    """Both go through the same phases; one that downloads is waited for, and one that is sent everything does not."""
    files = hub.repos["own/model"].commits[commit_of(1)]
    caches = Each([tmp_path / "full", tmp_path / "empty"])
    write_cache(caches[0], "own/model", commit_of(1), files)
    results = held_by(two.run(rank_jobs.read_from_hub, "own/model", how, endpoint=hub.endpoint, cache=caches))
    if how != "slices":
        assert results == [expected(files)] * 2
    assert [sorted(held) for held in results] == [sorted(expected(files))] * 2
    weights = sum(len(data) for name, data in files.items() if ".safetensors" in name)  # and their index
    assert hub.sent(".safetensors") == (0 if how == "broadcast" else weights)


class Moving(dict[str, str]):
    """Refs of which a branch leads elsewhere from the second time on that it is asked for."""

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        found = super().get(name, default)
        if name == "main":
            self["main"] = commit_of(2)
        return found


@pytest.mark.parametrize("how", EVERY)
def test_b168_all_ranks_load_the_commit_that_the_first_found(
    two: Ranks, hub: HubServer, tmp_path: Path, how: str
) -> None:
    files = hub.repos["own/model"].commits[commit_of(1)]
    hub.put("own/model", dict.fromkeys(files, b"newer"), commit=commit_of(2))
    hub.repos["own/model"].refs = Moving(main=commit_of(1))
    caches = Each([tmp_path / "0", tmp_path / "1"])
    results = held_by(two.run(rank_jobs.read_from_hub, "own/model", how, endpoint=hub.endpoint, cache=caches))
    assert hub.repos["own/model"].refs["main"] == commit_of(2)
    if how != "slices":
        assert results == [expected(files)] * 2
    assert [sorted(held) for held in results] == [sorted(expected(files))] * 2


def test_b135_a_dtype_that_gloo_refuses_is_sent(two: Ranks, every: Path) -> None:
    """Here torch itself is asked which they are."""
    refused = two.run(rank_jobs.refused_by_gloo, every)[0]
    assert {"U16", "U32", "U64", "F8_E4M3", "F8_E5M2"} <= set(refused), json.dumps(refused)
    whole = contents(load_file(every).items())
    for how in ("broadcast", "partition"):
        assert held_by(two.run(rank_jobs.read, every, how)) == [whole] * 2
