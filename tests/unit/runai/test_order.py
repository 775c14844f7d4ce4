# SPDX-License-Identifier: Apache-2.0
"""The order of tensors does not depend on the order in which their bytes arrive."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.object_server import ObjectServer
from support.tensors import write_shards

from weight_readers_runai.reader import StreamerReader

RUNS = 100


@pytest.mark.parametrize("place", ["disk", "s3"])
def test_a_hundred_runs_have_one_order(server: ObjectServer, tmp_path: Path, place: str) -> None:
    shards = write_shards(tmp_path, 2, tensors=20)
    server.objects |= {f"models/{shard.name}": shard.read_bytes() for shard in shards}
    files = [f"s3://models/{shard.name}" if place == "s3" else str(shard) for shard in shards]
    reader = StreamerReader()
    orders = {tuple(name for name, _ in reader.iter_weights(files)) for _ in range(RUNS)}
    assert {tuple(f"s{shard}.t{number}" for shard in (1, 2) for number in range(20))} == orders
