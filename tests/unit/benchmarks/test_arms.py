# SPDX-License-Identifier: Apache-2.0
"""Every arm that runs here delivers what the safetensors library reads from the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import data
from benchmarks.peers import ARMS

ROOT = Path(__file__).parents[3]

# In a process of its own, as in a run: peers read their environment once, and may take the process with them.
COMPARE = """
import json, os, sys
from benchmarks.delivered import existing
from benchmarks.entries import SELECTIONS, read_entries
from benchmarks.peers import ARMS

name, files, own = json.loads(sys.argv[1])
arm = ARMS[name]()
os.environ.update(arm.environment)
import torch
from safetensors.torch import load_file

def same(tensors, expected):
    assert set(tensors) == set(expected), (len(tensors), len(expected))
    for key, tensor in tensors.items():
        assert tensor.dtype == expected[key].dtype and tensor.shape == expected[key].shape, key
        assert torch.equal(tensor.contiguous().view(torch.uint8), expected[key].contiguous().view(torch.uint8)), key

whole = {key: tensor.clone() for path in files for key, tensor in load_file(path).items()}
entries = read_entries(files)

targets = existing(entries)
arm.prepare(entries, targets)
arm.into(own, targets)
same(targets, whole)

arm.prepare(entries, None)
same(arm.owned(own), whole)

some = SELECTIONS["keys"](entries)
names = {entry.name for entry in some}
arm.prepare(some, None)
same(arm.owned(own, names), {key: whole[key] for key in names})

arm.prepare(SELECTIONS["rows"](entries), None)
matrices = {key: t[len(t) * 3 // 8 : len(t) * 4 // 8] for key, t in whole.items() if t.ndim == 2}
same(arm.rows(own), matrices)

if arm.streams:
    same({key: tensor.clone() for key, tensor in arm.stream(own)}, whole)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> data.Checkpoint:
    return data.model(tmp_path_factory.mktemp("data"), 1 << 20, shards=2)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_delivers_the_bytes_that_the_safetensors_library_reads(name: str, checkpoint: data.Checkpoint) -> None:
    if (reason := ARMS[name].absent()) is not None:
        pytest.skip(reason)
    own = checkpoint.twins if ARMS[name].of_twin else checkpoint.files
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, json.dumps([name, checkpoint.files, own])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
