# SPDX-License-Identifier: Apache-2.0
"""What a load from S3 costs on the wire, counted at rclone's server: 64 MiB in 8 shards, through the command.

The command has no option for a slice of a process that loads alone; that goes through `open_checkpoint`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import invoke, run
from support.files import write_index, write_tensors
from support.object_server import only_loopback
from support.rclone import Server, running
from support.tensors import bits

from weight_readers import TensorSlice
from weight_readers_loader import open_checkpoint

MIB = 1 << 20
SHARDS, OF_EACH = 8, 8
FIRST_READ = 64 << 10
"""Bytes of each object that are read for its header, at most: those of these files are shorter."""
NAMES = [f"s{shard}.t{number}" for shard in range(SHARDS) for number in range(OF_EACH)]
WANTED = ("s1.t3", "s4.t0", "s6.t7")
"""3 of 64 tensors: 4.7 % of the bytes."""

DIGESTS = """
import hashlib, json
def digests(tensors):
    return json.dumps({name: hashlib.sha256(tensor.numpy()).hexdigest() for name, tensor in tensors.items()})
"""


def content(name: str) -> bytes:
    return hashlib.shake_128(name.encode()).digest(MIB)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``models/m``: 8 shards of 8 tensors of 1 MiB, 1024 rows each. rclone has computed its checksums of them."""
    root = tmp_path_factory.mktemp("s3")
    folder, index = root / "models" / "m", {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        names = [f"s{shard}.t{number}" for number in range(OF_EACH)]
        write_tensors(folder / file, {name: ("U8", [1024, 1024], content(name)) for name in names})
        index |= dict.fromkeys(names, file)
    write_index(folder, index, total_size=SHARDS * OF_EACH * MIB)
    with running(root) as server, pytest.MonkeyPatch.context() as monkeypatch:
        only_loopback(monkeypatch, server.endpoint)
        yield server


@pytest.fixture(scope="module")
def headers(server: Server) -> int:
    """Bytes that it takes to look at the checkpoint: listing, index and headers of 8 objects."""
    sent, done = counted(server, lambda: invoke("inspect", "s3://models/m"))
    assert done.exit_code == 0, done.stderr
    assert sent <= SHARDS * FIRST_READ + 32 * 1024
    return sent


@pytest.fixture
def digesting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module for ``--then``: it makes the SHA-256 of each tensor that was loaded."""
    (tmp_path / "digesting.py").write_text(DIGESTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def counted(server: Server, action: Callable[[], Any]) -> tuple[int, Any]:
    before = server.sent_bytes()
    result = action()
    return server.sent_bytes() - before, result


ARGUMENTS = ("load", "s3://models/m", "--json", "--then", "digesting:digests")


def check_digests(names: Iterable[str], stdout: str) -> None:
    assert {n: hashlib.sha256(content(n)).hexdigest() for n in names} == json.loads(json.loads(stdout)["result"])


def test_all_of_it_is_bit_equal_and_crosses_the_wire_once(server: Server, headers: int, digesting: Path) -> None:
    sent, done = counted(server, lambda: run(*ARGUMENTS, cwd=digesting))
    assert done.returncode == 0, done.stderr
    check_digests(NAMES, done.stdout)
    assert sent - headers <= 1.01 * len(NAMES) * MIB


def test_a_twentieth_of_the_tensors_costs_its_share(server: Server, headers: int, digesting: Path) -> None:
    patterns = [part for name in WANTED for part in ("--filter", name)]
    sent, done = counted(server, lambda: invoke(*ARGUMENTS, *patterns))
    assert done.exit_code == 0, done.stderr
    check_digests(WANTED, done.stdout)
    assert len(WANTED) * MIB <= sent - headers <= 1.01 * len(WANTED) * MIB


def eighth(server: Server, dim: int) -> int:
    """Bytes sent for an eighth of every tensor, which is checked."""
    checkpoint = open_checkpoint("s3://models/m")
    parts = dict.fromkeys(checkpoint.tensors, TensorSlice(dim=dim, start=256, stop=384))
    sent, tensors = counted(server, lambda: {n: bits(t) for n, t in checkpoint.iter_weights(slices=parts)})
    assert {n: cut(content(n), dim) for n in NAMES} == tensors
    return sent


def cut(data: bytes, dim: int) -> bytes:
    rows = [data[at : at + 1024] for at in range(0, MIB, 1024)]
    return b"".join(rows[256:384] if dim == 0 else [row[256:384] for row in rows])


def test_an_eighth_of_the_rows_costs_its_share(server: Server) -> None:
    assert eighth(server, 0) <= 1.01 * len(NAMES) * MIB / 8


def test_an_eighth_of_columns_costs_all_since_the_gaps_are_short(server: Server) -> None:
    assert eighth(server, 1) <= 1.01 * len(NAMES) * MIB
