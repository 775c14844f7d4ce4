# SPDX-License-Identifier: Apache-2.0
"""``weight-readers load`` as one of several ranks, started by torchrun or by hand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import COMMAND, environment, invoke
from support.files import write_tensors
from support.tensors import tensor

pytest.importorskip("weight_readers_threaded")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tensors(tmp_path / "model.safetensors", {"w": tensor("F32", 64, 16), "b": tensor("I16", 7)})


def test_torchrun_starts_ranks_of_which_one_reads_where_the_configuration_says_so(path: Path, tmp_path: Path) -> None:
    """enable_broadcast_weight_load, as users of vLLM-Omni know it."""
    report, config = tmp_path / "report.json", tmp_path / "weights.toml"
    config.write_text("enable_broadcast_weight_load = true\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    arguments = ["load", str(path), "--config", str(config), "--json", "--progress", "--report", str(report)]
    done = subprocess.run(
        [*torchrun, str(COMMAND), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (told,) = [json.loads(done.stdout)]  # of the first rank alone
    nbytes = 64 * 16 * 4 + 7 * 2
    assert told["report"]["bytes_wanted"] == nbytes
    assert told["report"]["read_by_rank"] == {"0": nbytes, "1": 0}
    assert json.loads(report.read_text())["how"] == "broadcast"
    assert done.stderr.count("broadcast: 100%") >= 1


def ranks(*arguments: str, folder: Path) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [str(COMMAND), "load", *arguments],
            env=environment(*(folder, Path(__file__).parents[3]), RANK=str(rank), **common),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, (1, 130)), (signal.SIGKILL, (1, -9))])
def test_a_signal_to_one_rank_ends_all(path: Path, tmp_path: Path, number: int, codes: tuple[int, int]) -> None:
    from support import slow_reader

    slow_reader.install(tmp_path / "site")
    write_tensors(path, {f"t{number}": tensor("F32", 64, 16) for number in range(20)})
    slow = ["--reader", "slow", "--option", "seconds_per_kib=0.5", "--no-progress"]
    both = ranks(str(path.parent), "--broadcast", *slow, folder=tmp_path / "site")
    try:
        assert both[1].stderr is not None
        assert "waiting for rank 0" in both[1].stderr.readline()
        os.kill(both[1].pid, number)
        ended = [process.communicate(timeout=15) for process in both]
    finally:
        for process in both:
            process.kill()
            process.communicate(timeout=600)
    assert tuple(process.returncode for process in both) == codes
    assert "rank 1" in ended[0][1]


def test_without_a_launcher_it_says_how_to_start_it(path: Path) -> None:
    done = invoke("load", path, "--broadcast")
    assert done.exit_code == 1
    assert "torchrun --nproc-per-node 2 --no-python weight-readers load" in done.stderr


def test_a_broadcast_by_configuration_without_other_ranks_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHT_READERS_ENABLE_BROADCAST_WEIGHT_LOAD", "true")
    done = invoke("load", path)
    assert done.exit_code == 1
    variable = "environment, WEIGHT_READERS_ENABLE_BROADCAST_WEIGHT_LOAD"
    assert f"enable_broadcast_weight_load=True ({variable}) is for several ranks" in done.stderr
    assert "torchrun --nproc-per-node 2" in done.stderr
    assert invoke("load", path, "--disable-broadcast-weight-load").exit_code == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--broadcast", "--slices"),
        ("--slices", "--sha256"),
        ("--partition", "--owned"),
        ("--enable-broadcast-weight-load", "--owned"),
        ("--broadcast", "--disable-broadcast-weight-load"),
    ],
    ids=" ".join,
)
def test_what_excludes_itself_is_refused(path: Path, options: tuple[str, ...]) -> None:
    done = invoke("load", path, *options)
    assert done.exit_code == 2
    assert options[0] in done.stderr
