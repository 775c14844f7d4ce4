# SPDX-License-Identifier: Apache-2.0
"""Slices loaded into targets: plain tensors that hold a part of one of the checkpoint each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.files import write_tensors
from torch import nn

from weight_readers import MissingTensorError, SliceError, TargetMismatchError, TensorSlice
from weight_readers_loader import open_checkpoint
from weight_readers_loader.adapters import Split

ROWS, COLUMNS = TensorSlice(dim=0, start=2, stop=4), TensorSlice(dim=-1, start=1, stop=4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(48.0).reshape(6, 8), "b": torch.arange(40.0).reshape(5, 8), "c": torch.ones(3)}, path)
    return path


def targets() -> dict[str, torch.Tensor]:
    return {"a": torch.zeros(2, 8), "b": torch.zeros(5, 3), "c": torch.zeros(3)}


@pytest.mark.parametrize("reader", [None, "safetensors", "threaded", "runai_streamer"])
def test_each_target_takes_its_part_and_no_more_is_read(model: Path, reader: str | None) -> None:
    expected, filled = load_file(model), targets()
    report = open_checkpoint(model, reader=reader).load_into(filled, slices={"a": ROWS, "b": COLUMNS})
    assert torch.equal(expected["a"][2:4], filled["a"])
    assert torch.equal(expected["b"][:, 1:4], filled["b"])
    assert torch.equal(expected["c"], filled["c"])
    assert report.bytes_read == 4 * (2 * 8 + 5 * 3 + 3)


@pytest.mark.parametrize("reader", [None, "safetensors", "threaded", "runai_streamer"])
def test_a_target_takes_a_part_of_two_dimensions_and_no_more_is_read(model: Path, reader: str | None) -> None:
    filled = {"a": torch.zeros(2, 3), "b": torch.zeros(5, 3)}
    slices = {"a": (ROWS, COLUMNS), "b": (COLUMNS,)}
    report = open_checkpoint(model, reader=reader).load_into(filled, slices=slices, strict=False)
    expected = load_file(model)
    assert torch.equal(expected["a"][2:4, 1:4], filled["a"])
    assert torch.equal(expected["b"][:, 1:4], filled["b"])
    assert (report.bytes_wanted, report.bytes_read) == (84, 84)
    assert "multi_slices" not in str(report)


def test_strided_targets_and_converted_ones_take_theirs(model: Path) -> None:
    expected = load_file(model)
    filled = {"a": torch.zeros(8, 2).T, "b": torch.zeros(5, 3, dtype=torch.bfloat16)}
    open_checkpoint(model).load_into(filled, slices={"a": ROWS, "b": COLUMNS}, strict=False, cast=True)
    assert torch.equal(expected["a"][2:4], filled["a"])
    assert torch.equal(expected["b"][:, 1:4].to(torch.bfloat16), filled["b"])


def test_parameters_on_the_meta_device_become_their_parts(model: Path) -> None:
    module = nn.Module()
    for name, tensor in targets().items():
        module.register_parameter(name, nn.Parameter(torch.empty_like(tensor, device="meta")))
    module.a.shard_dim = 0  # type: ignore[union-attr]
    open_checkpoint(model).load_into(module, slices={"a": ROWS, "b": COLUMNS})
    expected = load_file(model)
    assert torch.equal(expected["a"][2:4], module.a)
    assert torch.equal(expected["b"][:, 1:4], module.b)
    assert module.a.shard_dim == 0  # type: ignore[union-attr]


def test_of_what_an_adapter_makes_the_part_is_cut_in_memory(model: Path) -> None:
    filled = {"one": torch.zeros(3, 3), "two": torch.zeros(1, 8)}
    slices = {"one": COLUMNS, "two": TensorSlice(dim=0, stop=1)}
    opened = open_checkpoint(model, adapters=[Split("a", ["one", "two"])])
    opened.load_into(filled, slices=slices, strict=False)
    one, two = load_file(model)["a"].chunk(2)
    assert torch.equal(one[:, 1:4], filled["one"])
    assert torch.equal(two[:1], filled["two"])


def test_packed_numbers_are_cut_between_whole_elements(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"w": ("F4", [2, 8], bytes(range(8)))})
    checkpoint, target = open_checkpoint(tmp_path), torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    checkpoint.load_into({"w": target}, slices={"w": TensorSlice(dim=1, start=4)})
    assert target.view(torch.uint8).tolist() == [[2, 3], [6, 7]]
    with pytest.raises(SliceError, match=r"3: of dimension 1 cuts F4 inside .* multiples of 2: 2:8 holds it"):
        checkpoint.load_into({"w": target}, slices={"w": TensorSlice(dim=1, start=3)})
    checkpoint.load_into({"w": target[:, :0]}, slices={"w": TensorSlice(dim=1, start=3, stop=3)})


@pytest.mark.parametrize(
    ("slices", "error", "said"),
    [
        ({"a": ROWS, "b": ROWS}, TargetMismatchError, r"target 'b' is \[5, 3\], and 2:4 of dimension 0 .* is \[2, 8\]"),
        ({"a": TensorSlice(dim=0, start=3)}, TargetMismatchError, r"and 3: of dimension 0 .* is \[3, 8\]"),
        ({"a": ROWS}, TargetMismatchError, r"b \(checkpoint \[5, 8\], target \[5, 3\]\)"),
        ({"a": ROWS, "bb": COLUMNS}, MissingTensorError, "Did you mean 'b'"),
        ({"a": ROWS, "b": TensorSlice(dim=2)}, SliceError, "dimension 2 is out of range for shape .*tensor 'b'"),
        ({"a": ROWS, "b": slice(1)}, TypeError, "TensorSlice"),
    ],
)
def test_a_slice_that_does_not_fit_is_refused_and_nothing_is_written(
    model: Path, slices: dict[str, Any], error: type[Exception], said: str
) -> None:
    filled = targets()
    with pytest.raises(error, match=said):
        open_checkpoint(model).load_into(filled, slices=slices)
    assert not any(tensor.any() for tensor in filled.values())


def test_a_slice_that_no_target_takes_is_refused(model: Path) -> None:
    with pytest.raises(ValueError, match="slices: no target is called 'a'"):
        open_checkpoint(model).load_into({"c": torch.zeros(3)}, slices={"a": ROWS}, strict=False)


def test_two_targets_of_one_tensor_take_the_same_part(tmp_path: Path) -> None:
    save_file({"embed": torch.ones(4, 2)}, tmp_path / "model.safetensors", metadata={"head": "embed"})
    filled = {"embed": torch.zeros(2, 2), "head": torch.zeros(4, 2)}
    with pytest.raises(TargetMismatchError, match="the targets embed, head take different parts of one tensor"):
        open_checkpoint(tmp_path).load_into(filled, slices={"embed": TensorSlice(dim=0, stop=2)}, resolve_aliases=True)
    assert not filled["embed"].any()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tied_parameter_is_not_two_parts_at_once(device: str, tmp_path: Path) -> None:
    save_file(
        {"embed": torch.arange(8.0).reshape(4, 2), "head": torch.arange(8.0).reshape(4, 2)}, tmp_path / "m.safetensors"
    )
    module = nn.Module()
    module.embed = module.head = nn.Parameter(torch.zeros(2, 2, device=device))
    first, last = TensorSlice(dim=0, stop=2), TensorSlice(dim=0, start=2)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(TargetMismatchError, match="the targets embed, head take different parts of what fills one"):
        checkpoint.load_into(module, slices={"embed": first, "head": last})
    assert module.embed.is_meta or not module.embed.any()
    checkpoint.load_into(module, slices={"embed": last, "head": last})
    assert module.head.tolist() == [[4.0, 5.0], [6.0, 7.0]]
