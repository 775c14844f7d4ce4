# SPDX-License-Identifier: Apache-2.0
"""Theme 5: mapping a file over a network is 30 to 50 times slower than copying it, and a failed fault ends the process.

B084: vllm-project/vllm#24469, safetensors/safetensors#562, Comfy-Org/ComfyUI#2288, facebookresearch/fairseq2#1199.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from weight_readers import Environment
from weight_readers_loader import open_checkpoint

pytest.importorskip("weight_readers_threaded")
COPYING, MAPPING = "threaded", "safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file({"w": torch.arange(1024.0)}, tmp_path / "model.safetensors")
    return tmp_path


def loaded(model: Path, **facts: Any) -> Any:
    checkpoint = open_checkpoint(model, environment=Environment(page_cache_residency=0.0, **facts))
    assert torch.equal(checkpoint.state_dict()["w"], torch.arange(1024.0))
    assert checkpoint.report is not None
    return checkpoint.report


@pytest.mark.parametrize(
    ("filesystem", "reader"),
    [
        ("nfs", COPYING),
        ("nfs4", COPYING),
        ("lustre", COPYING),
        ("fuse.s3fs", COPYING),
        ("virtiofs", COPYING),
        ("ext4", MAPPING),
        ("overlay", MAPPING),
        ("tmpfs", MAPPING),
        ("unheard-of", MAPPING),
    ],
)
def test_b084_what_is_kept_is_mapped_only_where_a_fault_is_no_round_trip(
    model: Path, filesystem: str, reader: str
) -> None:
    report = loaded(model, filesystem=filesystem)
    assert report.reader == reader
    assert filesystem in report.selection.explain()


def test_b084_where_memory_does_not_hold_a_copy_the_mapping_is_read_ahead_in_large_requests(model: Path) -> None:
    report = loaded(model, filesystem="nfs", host_memory_free=100)
    candidate = report.selection.candidate(report.reader)
    assert (report.reader, candidate.settings["prefetch"]) == (MAPPING, 8)


def test_b126_over_a_network_all_ranks_of_a_machine_together_make_few_requests(model: Path) -> None:
    """128 threads by default thrash a shared disk (vllm-project/vllm-ascend#16548)."""
    threads = {}
    for ranks in (1, 4, 64):
        report = loaded(model, filesystem="lustre", local_ranks=ranks, cpus=128)
        threads[ranks] = report.selection.candidate(COPYING).settings["num_threads"]
    assert threads == {1: 8, 4: 2, 64: 1}
