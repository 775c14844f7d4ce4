# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from support.files import floats, write_index, write_sharded, write_tensors
from torch import nn

import weight_readers
from weight_readers import CheckpointProblems, Environment, MissingTensorError, TensorSlice
from weight_readers_loader import LoadReport, open_checkpoint
from weight_readers_safetensors import known


def linear_file(folder: Path) -> Path:
    """A file for ``nn.Linear(3, 2)``: weight 0..5, bias 6, 7."""
    return write_tensors(
        folder / "model.safetensors",
        {"weight": ("F32", [2, 3], floats(0, 1, 2, 3, 4, 5)), "bias": ("F32", [2], floats(6, 7))},
        format="pt",
    )


WEIGHT = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
BIAS = torch.tensor([6.0, 7.0])


def test_a_folder_with_an_index_gives_every_tensor_of_every_shard(tmp_path: Path) -> None:
    write_sharded(tmp_path, 3)
    state = open_checkpoint(tmp_path).state_dict()
    assert {n: t.tolist() for n, t in state.items()} == {"t1": [1, 1.5], "t2": [2, 2.5], "t3": [3, 3.5]}


def test_two_shards_without_an_index_are_read_from_their_headers(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2, index=False)
    assert [name for name, _ in open_checkpoint(tmp_path).iter_weights()] == ["t1", "t2"]


def test_a_single_file_is_a_checkpoint(tmp_path: Path) -> None:
    state = open_checkpoint(linear_file(tmp_path)).state_dict()
    assert torch.equal(WEIGHT, state["weight"])
    assert torch.equal(BIAS, state["bias"])


def test_a_filter_declines_names_before_they_are_read(tmp_path: Path) -> None:
    linear_file(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.state_dict(key_filter=lambda name: name == "bias")) == ["bias"]
    assert checkpoint.report is not None
    assert (checkpoint.report.bytes_wanted, checkpoint.report.bytes_read) == (8, 8)


def test_slices_come_through_the_reader(tmp_path: Path) -> None:
    linear_file(tmp_path)
    state = open_checkpoint(tmp_path).state_dict(slices={"weight": TensorSlice(dim=1, start=1, stop=3)})
    assert torch.equal(WEIGHT[:, 1:3], state["weight"])
    assert torch.equal(BIAS, state["bias"])


def test_a_slice_of_an_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    linear_file(tmp_path)
    with pytest.raises(MissingTensorError, match="'weigth'"):
        open_checkpoint(tmp_path).state_dict(slices={"weigth": TensorSlice(dim=0, start=0, stop=1)})


def test_an_owned_state_dict_survives_a_rewrite_of_the_file(tmp_path: Path) -> None:
    path = linear_file(tmp_path)
    state = open_checkpoint(tmp_path).state_dict(owned=True)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(WEIGHT, state["weight"])


def test_a_kept_state_dict_is_a_view_of_the_file(tmp_path: Path) -> None:
    path = linear_file(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    state = checkpoint.state_dict()
    maps = Path("/proc/self/maps").read_text()
    assert str(path) in maps
    del state
    assert checkpoint.report is not None
    assert checkpoint.report.reader == "safetensors"


def test_load_into_fills_a_module_in_place(tmp_path: Path) -> None:
    linear_file(tmp_path)
    module = nn.Linear(3, 2)
    parameter = module.weight
    report = open_checkpoint(tmp_path).load_into(module)
    assert parameter is module.weight
    assert torch.equal(WEIGHT, module.weight)
    assert torch.equal(BIAS, module.bias)
    assert (report.tensors, report.bytes_wanted, report.bytes_read) == (2, 32, 32)


def test_load_into_materialises_a_meta_module_as_trainable_parameters(tmp_path: Path) -> None:
    linear_file(tmp_path)
    with torch.device("meta"):
        module = nn.Linear(3, 2)
    open_checkpoint(tmp_path).load_into(module)
    assert isinstance(module.weight, nn.Parameter)
    assert module.weight.requires_grad
    assert torch.equal(WEIGHT, module.weight)


def test_load_into_fills_a_mapping_through_a_non_contiguous_target(tmp_path: Path) -> None:
    linear_file(tmp_path)
    weight = torch.zeros(3, 2).t()
    open_checkpoint(tmp_path).load_into({"weight": weight, "bias": torch.zeros(2)})
    assert torch.equal(WEIGHT, weight)


def test_a_model_that_wants_only_part_reads_only_that_part(tmp_path: Path) -> None:
    linear_file(tmp_path)
    report = open_checkpoint(tmp_path).load_into(nn.Linear(3, 2, bias=False), strict=False)
    assert report.unexpected == ("bias",)
    assert report.bytes_read == 24


def test_get_tensor_reads_one_and_names_one_that_is_not_there(tmp_path: Path) -> None:
    linear_file(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert torch.equal(BIAS, checkpoint.get_tensor("bias"))
    with pytest.raises(MissingTensorError, match="'nope'"):
        checkpoint.get_tensor("nope")


def test_reader_options_reach_the_reader_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    linear_file(tmp_path)
    checkpoint = open_checkpoint(tmp_path, reader_options={"prefetch": 2})
    assert torch.equal(BIAS, checkpoint.state_dict()["bias"])
    with pytest.raises(weight_readers.ConfigError, match=r"no installed reader has an option 'nonsense' \(argument\)"):
        open_checkpoint(tmp_path, reader_options={"nonsense": 2})


def test_the_report_holds_selection_figures_and_goes_to_json(tmp_path: Path) -> None:
    linear_file(tmp_path)
    checkpoint = open_checkpoint(tmp_path, environment=Environment(cpus=2))
    checkpoint.state_dict()
    report = checkpoint.report
    assert isinstance(report, LoadReport)
    data = report.to_json()
    assert (data["reader"], data["tensors"], data["bytes_wanted"]) == ("safetensors", 2, 32)
    assert data["selection"]["environment"]["cpus"] == 2
    assert report.seconds_to_first is not None
    assert 0 < report.seconds_to_first <= report.seconds
    assert report.peak_rss_anon is not None
    assert report.peak_rss_anon > 1 << 20


def test_all_broken_shards_are_listed_in_one_error(tmp_path: Path) -> None:
    first, second, third = write_sharded(tmp_path, 3)
    first.write_bytes(first.read_bytes()[:-1])
    third.write_bytes(b"not a shard")
    with pytest.raises(CheckpointProblems) as caught:
        open_checkpoint(tmp_path)
    assert {str(first), str(third)} == {problem.path for problem in caught.value.problems}
    assert str(second) not in str(caught.value)


def test_an_index_decides_between_two_files_that_hold_one_name(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"w": ("F32", [1], floats(1)), "x": ("F32", [1], floats(2))})
    write_tensors(tmp_path / "b.safetensors", {"w": ("F32", [1], floats(3))})
    write_index(tmp_path, {"x": "a.safetensors", "w": "b.safetensors"})
    checkpoint = open_checkpoint(tmp_path)
    assert {n: t.tolist() for n, t in checkpoint.state_dict().items()} == {"x": [2.0], "w": [3.0]}
    assert checkpoint.report is not None
    assert (checkpoint.report.tensors, checkpoint.report.bytes_read) == (2, 8)
    assert any("not named by the index" in notice for notice in checkpoint.notices)


def test_strict_refuses_tensors_that_the_index_does_not_name(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"w": ("F32", [1], floats(1)), "x": ("F32", [1], floats(2))})
    write_index(tmp_path, {"w": "a.safetensors"})
    assert list(open_checkpoint(tmp_path).tensors) == ["w"]
    with pytest.raises(weight_readers.BadIndexError, match="'x'"):
        open_checkpoint(tmp_path, strict=True)


def test_the_same_headers_serve_several_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linear_file(tmp_path)
    reads: list[object] = []
    original = known.read_headers
    monkeypatch.setattr(known, "read_headers", lambda files: reads.append(files) or original(files))
    checkpoint = open_checkpoint(tmp_path, reader="safetensors")
    checkpoint.state_dict()
    checkpoint.load_into(nn.Linear(3, 2))
    assert len(reads) == 1


def test_on_file_is_told_each_file_once_in_order(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path, 3)
    seen: list[str] = []
    open_checkpoint(tmp_path, on_file=seen.append).state_dict()
    assert [str(shard) for shard in shards] == seen


def test_what_is_done_to_the_metadata_of_one_checkpoint_is_not_in_another(tmp_path: Path) -> None:
    path = linear_file(tmp_path)
    os.utime(path, (1, 1))  # long ago, so that readers share its header
    first = open_checkpoint(path)
    first.metadata[str(path)]["format"] = "np"
    assert open_checkpoint(path).metadata == {str(path): {"format": "pt"}}
