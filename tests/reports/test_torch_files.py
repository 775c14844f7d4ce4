# SPDX-License-Identifier: Apache-2.0
"""Public reports about files of torch.save: code that runs at load, old formats, views, leftovers, tied weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.commands import run
from support.measure import mapped_bytes
from unit.pt.torch_files import Bomb, save

from weight_readers import UnsafePickleError
from weight_readers_loader import open_checkpoint


class TestB139AWeightFileRunsCode:
    """vllm-project/vllm#12366, CVE-2025-32434, CVE-2026-24747."""

    @pytest.mark.parametrize(("command", "is_legacy"), [("load", True), ("bench", False)])
    def test_not_in_the_process_that_loads_as_a_user_starts_it(
        self, tmp_path: Path, command: str, is_legacy: bool
    ) -> None:
        # The other commands, in this process and under other names: tests/unit/loader/test_pt.py.
        marker = tmp_path / "it-ran"
        save(tmp_path / "pytorch_model.bin", {"w": torch.ones(2), "x": Bomb(marker)}, legacy=is_legacy)
        done = run(command, "pytorch_model.bin", cwd=tmp_path)
        assert not marker.exists()
        assert (done.returncode, "posix.system" in done.stderr) == (1, True)
        assert "Traceback" not in done.stderr

    def test_the_error_offers_no_way_to_run_it(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.bin", {"x": Bomb(tmp_path / "it-ran")})
        with pytest.raises(UnsafePickleError) as caught:
            open_checkpoint(path)
        assert "weights_only" not in str(caught.value)
        assert "safe_globals" not in str(caught.value)


class TestB140AnOldFileIsRefusedWhereItCannotBeMapped:
    """pytorch/executorch#5030."""

    def test_it_is_read_and_one_line_says_what_is_different(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.bin", {"w": torch.arange(4.0)}, legacy=True)
        with pytest.raises(RuntimeError):
            torch.load(path, weights_only=True, mmap=True)
        checkpoint = open_checkpoint(path)
        assert checkpoint.state_dict()["w"].tolist() == [0, 1, 2, 3]
        (notice,) = checkpoint.notices
        assert "before 1.6" in notice
        assert "\n" not in notice


class TestB141TenElementsTakeFourMegabytes:
    """pytorch/pytorch#1995."""

    def test_inspect_shows_both_and_only_the_elements_are_mapped(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.bin", {"x": torch.zeros(1_000_000)[:10]})
        (notice,) = open_checkpoint(path).notices
        assert "x needs 40 of 4000000 bytes" in notice
        tensors = open_checkpoint(path).state_dict()
        assert mapped_bytes(path) <= 8192
        assert tensors["x"].numel() == 10


class TestB143WhatTrainingLeavesIsLoadedAsWeights:
    """vllm-project/vllm#615."""

    def test_it_is_left_out_with_a_reason(self, tmp_path: Path) -> None:
        save(tmp_path / "pytorch_model.bin", {"w": torch.ones(1)})
        save(tmp_path / "training_args.bin", Bomb(tmp_path / "it-ran"))
        save(tmp_path / "optimizer.bin", {"state": {0: {"exp_avg": torch.ones(1)}}, "param_groups": []})
        found = json.loads(run("inspect", tmp_path, "--json").stdout)
        assert [tensor["name"] for tensor in found["tensors"]] == ["w"]
        assert found["left_out"] == [
            {"name": name, "reason": "state of a training run"} for name in ("optimizer.bin", "training_args.bin")
        ]


class TestB145TiedTensorsAreUntied:
    """safetensors/safetensors#202, huggingface/accelerate#2875, pytorch/pytorch#188346."""

    def test_names_of_one_tensor_share_memory_and_are_said(self, tmp_path: Path) -> None:
        embed = torch.ones(4, 2)
        path = save(tmp_path / "x.bin", {"embed": embed, "head": embed})
        checkpoint = open_checkpoint(path)
        tensors = checkpoint.state_dict()
        assert tensors["embed"].data_ptr() == tensors["head"].data_ptr()
        assert "embed = head" in checkpoint.notices[0]

    def test_overlapping_views_share_the_elements_they_have_in_common(self, tmp_path: Path) -> None:
        x = torch.arange(9.0)
        tensors = open_checkpoint(save(tmp_path / "x.bin", {"a": x[:6], "b": x[3:]})).state_dict()
        tensors["a"][3] = 7
        assert tensors["b"].tolist() == [7, 4, 5, 6, 7, 8]

    def test_one_storage_under_other_shapes_is_read_as_each(self, tmp_path: Path) -> None:
        x = torch.arange(6.0)
        tensors = open_checkpoint(save(tmp_path / "x.bin", {"flat": x, "matrix": x.view(2, 3)})).state_dict()
        assert tensors["matrix"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert tensors["flat"].tolist() == x.tolist()
