# SPDX-License-Identifier: Apache-2.0
"""Loads into existing tensors by a reader that reads straight into them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.files import floats, write_index, write_tensors
from torch import nn

from weight_readers import Environment, FileChangedError
from weight_readers_loader import open_checkpoint

pytest.importorskip("weight_readers_threaded")


def linear(folder: Path) -> Path:
    return write_tensors(
        folder / "model.safetensors",
        {"weight": ("F32", [2, 3], floats(0, 1, 2, 3, 4, 5)), "bias": ("F32", [2], floats(6, 7))},
    )


WEIGHT = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


def test_a_load_into_existing_parameters_reads_straight_into_them(tmp_path: Path) -> None:
    linear(tmp_path)
    module = nn.Linear(3, 2)
    parameter, address = module.weight, module.weight.data_ptr()
    report = open_checkpoint(tmp_path).load_into(module)
    assert (report.reader, report.tensors, report.bytes_read) == ("threaded", 2, 32)
    assert module.weight is parameter
    assert address == module.weight.data_ptr()
    assert torch.equal(WEIGHT, module.weight)
    assert module.bias.tolist() == [6.0, 7.0]
    assert report.seconds_to_first is not None


def test_a_module_on_meta_is_served_from_the_mapping_unless_it_wants_owned_tensors(tmp_path: Path) -> None:
    linear(tmp_path)
    readers = []
    for owned in (False, True):
        with torch.device("meta"):
            module = nn.Linear(3, 2)
        readers.append(open_checkpoint(tmp_path).load_into(module, owned=owned).reader)
        assert torch.equal(WEIGHT, module.weight)
    assert readers == ["safetensors", "threaded"]


def test_a_strided_target_is_filled(tmp_path: Path) -> None:
    linear(tmp_path)
    target = {"weight": torch.zeros(3, 2).t(), "bias": torch.zeros(4)[::2]}
    report = open_checkpoint(tmp_path).load_into(target)
    assert report.reader == "threaded"
    assert torch.equal(WEIGHT, target["weight"])
    assert target["bias"].tolist() == [6.0, 7.0]


def test_a_load_that_converts_is_right_too(tmp_path: Path) -> None:
    linear(tmp_path)
    target = {"weight": torch.zeros(2, 3, dtype=torch.bfloat16), "bias": torch.zeros(2)}
    report = open_checkpoint(tmp_path).load_into(target, cast=True)
    assert report.cast == {"float32 -> bfloat16": 1}
    assert torch.equal(WEIGHT.bfloat16(), target["weight"])


def test_an_alias_that_is_not_tied_is_filled_from_the_same_tensor(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"embed": ("F32", [1], floats(7))}, head="embed")
    target = {"embed": torch.zeros(1), "head": torch.zeros(1)}
    report = open_checkpoint(tmp_path).load_into(target, resolve_aliases=True)
    assert report.reader == "threaded"
    assert (target["embed"].tolist(), target["head"].tolist()) == ([7.0], [7.0])


def test_names_that_the_target_lacks_are_not_read(tmp_path: Path) -> None:
    linear(tmp_path)
    report = open_checkpoint(tmp_path).load_into({"bias": torch.zeros(2)}, strict=False)
    assert (report.bytes_read, report.unexpected) == (8, ("weight",))


def test_an_index_decides_between_two_files_that_hold_one_name(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"w": ("F32", [1], floats(1)), "x": ("F32", [1], floats(2))})
    write_tensors(tmp_path / "b.safetensors", {"w": ("F32", [1], floats(3))})
    write_index(tmp_path, {"x": "a.safetensors", "w": "b.safetensors"})
    target = {"x": torch.zeros(1), "w": torch.zeros(1)}
    report = open_checkpoint(tmp_path).load_into(target)
    assert (report.reader, report.tensors, report.bytes_read) == ("threaded", 2, 8)
    assert {n: t.tolist() for n, t in target.items()} == {"x": [2.0], "w": [3.0]}


def test_a_file_that_changed_after_the_checkpoint_was_opened_is_refused_before_any_write(tmp_path: Path) -> None:
    path = linear(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    with path.open("ab") as file:
        file.write(b"!")
    module = nn.Linear(3, 2, bias=True)
    before = module.weight.detach().clone()
    with pytest.raises(FileChangedError):
        checkpoint.load_into(module)
    assert torch.equal(before, module.weight)


@pytest.mark.parametrize(
    ("keywords", "settings"),
    [
        ({"environment": Environment(cpus=3)}, {"num_threads": 3}),
        ({"num_weight_load_threads": 3}, {"num_threads": 3}),
        ({"enable_multithread_weight_load": False}, {"num_threads": 1}),
        ({"enable_multithread_weight_load": False, "num_weight_load_threads": 1}, {"num_threads": 1}),
    ],
)
def test_thread_settings_reach_a_reader_that_has_threads(tmp_path: Path, keywords: dict, settings: dict) -> None:
    linear(tmp_path)
    report = open_checkpoint(tmp_path, **keywords).load_into(nn.Linear(3, 2))
    candidate = report.selection.candidate("threaded")
    assert candidate is not None
    assert settings == candidate.settings


def test_thread_settings_do_not_keep_a_reader_without_threads_from_being_picked(tmp_path: Path) -> None:
    linear(tmp_path)
    checkpoint = open_checkpoint(tmp_path, num_weight_load_threads=8)
    checkpoint.state_dict()
    assert checkpoint.report is not None
    assert checkpoint.report.reader == "safetensors"


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"num_weight_load_threads": 0}, ValueError, "num_weight_load_threads must be at least 1, not 0"),
        ({"num_weight_load_threads": -2}, ValueError, "at least 1, not -2"),
        ({"num_weight_load_threads": "4"}, TypeError, "a whole number of at least 1, not '4'"),
        ({"num_weight_load_threads": True}, TypeError, "a whole number"),
        ({"num_weight_load_threads": 4, "enable_multithread_weight_load": False}, ValueError, "needs enable_multi"),
    ],
)
def test_thread_settings_out_of_range_are_refused_by_name(
    tmp_path: Path, keywords: dict, error: type[Exception], message: str
) -> None:
    linear(tmp_path)
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path, **keywords)
