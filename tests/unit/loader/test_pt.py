# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.save through the loader and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from support.commands import invoke
from support.files import floats, write_tensors
from torch import nn
from unit.pt.torch_files import Bomb, save

from weight_readers import (
    CheckpointNotFoundError,
    ForeignContentError,
    MissingShardError,
    UnsafePickleError,
)
from weight_readers_loader import open_checkpoint
from weight_readers_loader.cli import cli

READING = ("explain", "inspect", "verify", "load", "bench")
OTHERS = ("list", "doctor", "fetch", "new-plugin")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Shards and an index, written by huggingface_hub as transformers wrote them."""
    weights = {f"layer.{i}.weight": torch.full((32, 32), float(i)) for i in range(6)}
    save_torch_state_dict(weights, tmp_path, safe_serialization=False, max_shard_size=9000)
    assert len(list(tmp_path.glob("pytorch_model-*-of-*.bin"))) == 3
    assert (tmp_path / "pytorch_model.bin.index.json").exists()
    return tmp_path


class TestWhichFiles:
    def test_shards_with_an_index_are_one_checkpoint(self, sharded: Path) -> None:
        found = open_checkpoint(sharded).state_dict()
        assert {name: tensor[0, 0].item() for name, tensor in found.items()} == {
            f"layer.{i}.weight": float(i) for i in range(6)
        }

    def test_a_missing_shard_is_named(self, sharded: Path) -> None:
        (sharded / "pytorch_model-00002-of-00003.bin").unlink()
        with pytest.raises(MissingShardError, match="00002-of-00003"):
            open_checkpoint(sharded)

    def test_shards_without_an_index_are_read_whole(self, sharded: Path) -> None:
        (sharded / "pytorch_model.bin.index.json").unlink()
        assert len(open_checkpoint(sharded).tensors) == 6

    def test_a_variant_is_taken_when_it_is_asked_for(self, tmp_path: Path) -> None:
        save(tmp_path / "pytorch_model.bin", {"w": torch.ones(1)})
        save(tmp_path / "pytorch_model.fp16.bin", {"w": torch.ones(1, dtype=torch.float16)})
        assert open_checkpoint(tmp_path).tensors["w"].dtype == "float32"
        assert open_checkpoint(tmp_path, variant="fp16").tensors["w"].dtype == "float16"

    def test_what_training_leaves_behind_is_left_out(self, tmp_path: Path) -> None:
        save(tmp_path / "pytorch_model.bin", {"w": torch.ones(1)})
        save(tmp_path / "optimizer.bin", {"state": {0: torch.ones(1)}, "param_groups": []})
        save(tmp_path / "training_args.bin", Bomb(tmp_path / "marker"))
        save(tmp_path / "scheduler.bin", {"last_epoch": 3})
        checkpoint = open_checkpoint(tmp_path)
        assert list(checkpoint.tensors) == ["w"]
        assert dict(checkpoint.layout.left_out).keys() == {"optimizer.bin", "training_args.bin", "scheduler.bin"}
        assert not (tmp_path / "marker").exists()

    def test_each_of_those_given_by_itself_is_called_what_it_is(self, tmp_path: Path) -> None:
        optimizer = save(tmp_path / "optimizer.bin", {"state": {0: torch.ones(1)}, "param_groups": []})
        with pytest.raises(ForeignContentError, match="the state of an optimizer, not weights"):
            open_checkpoint(optimizer)

    def test_with_both_formats_safetensors_is_read_and_pt_on_request_only(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [1], floats(1))})
        save(tmp_path / "pytorch_model.bin", {"w": torch.full((1,), 2.0)})
        auto, asked = open_checkpoint(tmp_path), open_checkpoint(tmp_path, use_format="pt")
        assert (auto.layout.format, auto.state_dict()["w"].item()) == ("safetensors", 1)
        assert (asked.layout.format, asked.state_dict()["w"].item()) == ("pt", 2)
        assert asked.selection.chosen == "pt"

    def test_safetensors_asked_for_is_never_swapped_for_a_bin(self, tmp_path: Path) -> None:
        save(tmp_path / "pytorch_model.bin", {"w": torch.ones(1)})
        with pytest.raises(CheckpointNotFoundError, match=r"pytorch_model\.bin \(format pt\)"):
            open_checkpoint(tmp_path, use_format="safetensors")

    def test_a_checkpoint_of_training_is_read_by_its_state_dict(self, tmp_path: Path) -> None:
        path = save(tmp_path / "last.ckpt", {"epoch": 3, "state_dict": {"w": torch.ones(1)}, "lr": 0.1})
        checkpoint = open_checkpoint(path)
        assert list(checkpoint.tensors) == ["w"]
        assert any("under 'state_dict'" in notice for notice in checkpoint.notices)
        assert any("epoch, lr" in notice for notice in checkpoint.notices)

    @pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ""])
    def test_every_name_of_the_format_is_read_and_a_blob_without_a_suffix(self, tmp_path: Path, suffix: str) -> None:
        path = save(tmp_path / f"x{suffix}", {"w": torch.ones(1)})
        assert open_checkpoint(path).layout.format == "pt"


class TestLoading:
    @pytest.mark.parametrize("on_meta", [False, True])
    @pytest.mark.parametrize("is_legacy", [False, True])
    def test_a_module_with_tied_weights_is_filled_and_stays_tied(
        self, tmp_path: Path, on_meta: bool, is_legacy: bool
    ) -> None:
        def model() -> nn.Module:
            made = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
            made["head"].weight = made["embed"].weight
            return made

        saved = model()
        path = save(tmp_path / "pytorch_model.bin", saved.state_dict(), legacy=is_legacy)
        with torch.device("meta" if on_meta else "cpu"):
            target = model()
        open_checkpoint(path).load_into(target)
        assert torch.equal(saved["embed"].weight, target["embed"].weight)
        assert target["embed"].weight is target["head"].weight

    def test_parameters_that_are_not_tied_share_no_memory_though_the_file_does(self, tmp_path: Path) -> None:
        tied = torch.ones(3)
        path = save(tmp_path / "x.bin", {"a": tied, "b": tied})
        target = nn.Module()
        target.a, target.b = (nn.Parameter(torch.empty(3, device="meta")) for _ in range(2))
        open_checkpoint(path).load_into(target)
        with torch.no_grad():
            target.a[0] = 7
        assert target.b.tolist() == [1, 1, 1]

    def test_an_expanded_tensor_becomes_a_parameter_of_its_own_elements(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.bin", {"a": torch.full((1,), 2.0).expand(3)})
        target = nn.Module()
        target.a = nn.Parameter(torch.empty(3, device="meta"))
        open_checkpoint(path).load_into(target)
        with torch.no_grad():
            target.a[0] = 7
        assert target.a.tolist() == [7, 2, 2]

    def test_a_state_dict_on_request_depends_on_no_file(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.bin", {"w": torch.arange(4.0).reshape(2, 2).t()})
        found = open_checkpoint(path).state_dict(owned=True)
        path.write_bytes(b"")
        assert found["w"].tolist() == [[0, 2], [1, 3]]

    def test_a_slice_reads_rows(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.bin", {"w": torch.arange(12.0).reshape(4, 3)})
        assert open_checkpoint(path).get_slice("w")[1:3].tolist() == [[3, 4, 5], [6, 7, 8]]


class TestCommands:
    def test_load_inspect_verify_and_explain_work_on_a_folder(self, sharded: Path) -> None:
        loaded = json.loads(invoke("load", sharded, "--json").stdout)
        assert loaded["report"]["selection"]["chosen"] == "pt"
        assert "6 tensors in 3 files, 24.0 KiB: float32: 6" in invoke("inspect", sharded).stdout
        assert invoke("verify", sharded).exit_code == 0
        assert "chosen: pt" in invoke("explain", sharded).stdout

    def test_what_is_shared_and_what_is_too_large_is_said(self, tmp_path: Path) -> None:
        tied = torch.ones(2)
        path = save(tmp_path / "x.bin", {"a": tied, "b": tied, "v": torch.zeros(1000)[:1]})
        said = invoke("inspect", path).stdout
        assert "notice: x.bin: 1 tensor of more than one name, stored once: a = b" in said
        assert "notice: x.bin: 3996 bytes of 1 storage belong to no tensor" in said


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.ckpt", "blob", "model.safetensors", "model.gguf"])
@pytest.mark.parametrize("command", READING)
def test_no_command_runs_code_of_a_file_of_any_name(tmp_path: Path, command: str, name: str, is_legacy: bool) -> None:
    marker = tmp_path / "it-ran"
    path = save(tmp_path / "in" / name, {"w": torch.ones(2), "x": Bomb(marker)}, legacy=is_legacy)
    done = invoke(command, path)
    said = done.stdout + done.stderr
    assert not marker.exists()
    assert "posix.system" in said or "named as" in said or "pickle" in said
    assert command == "explain" or done.exit_code == 1


@pytest.mark.parametrize("place", ["folder", "file"])
def test_nor_does_the_one_that_copies_what_lies_beside_weights(tmp_path: Path, place: str) -> None:
    marker = tmp_path / "it-ran"
    path = save(tmp_path / "in" / "pytorch_model.bin", {"x": Bomb(marker)})
    save(tmp_path / "in" / "training_args.bin", Bomb(marker))
    done = invoke("fetch", path if place == "file" else path.parent, tmp_path / "out")
    assert (done.exit_code, marker.exists()) == (0, False)


def test_these_are_all_commands_there_are() -> None:
    assert {*READING, *OTHERS} == set(cli.commands)


def test_a_bomb_in_one_shard_of_an_index_is_named_and_does_not_go_off(sharded: Path) -> None:
    marker = sharded / "it-ran"
    shard = sharded / "pytorch_model-00002-of-00003.bin"
    save(shard, {**torch.load(shard, weights_only=True), "x": Bomb(marker)})
    with pytest.raises(UnsafePickleError, match=r"posix\.system") as caught:
        open_checkpoint(sharded)
    assert caught.value.path == str(shard)
    assert not marker.exists()
