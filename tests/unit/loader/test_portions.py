# SPDX-License-Identifier: Apache-2.0
"""Readers that slice one dimension only are handed no more: the rest is cut in memory, and the report says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.files import write_tensors

import weight_readers
from weight_readers import Feature, Registry, SliceError, TensorSlice
from weight_readers_loader import Checkpoint, open_checkpoint
from weight_readers_threaded.plugin import INFO
from weight_readers_threaded.reader import ThreadedReader

SIMPLE = replace(INFO, name="simple", features=INFO.features - {Feature.MULTI_SLICES})
PART = (TensorSlice(dim=0, start=2, stop=5), TensorSlice(dim=1, start=1, stop=3))


class Simple(ThreadedReader):
    """A reader as they were before slices of several dimensions."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(**options)
        self.info = SIMPLE
        self.asked: list[Any] = []

    def iter_weights(self, files: Any, *, slices: Any = None, **arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
        self.asked.append(slices)
        return super().iter_weights(files, slices=slices, **arguments)

    def read_into(self, files: Any, targets: Any, *, slices: Any = None, **arguments: Any) -> Any:
        self.asked.append(slices)
        return super().read_into(files, targets, slices=slices, **arguments)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Simple:
    """The only one that is installed."""
    made = Simple({"num_threads": 1})

    class Plugin:
        @weight_readers.hookimpl
        def weight_readers_describe(self) -> Any:
            return SIMPLE

        @weight_readers.hookimpl
        def weight_readers_create(self, options: object) -> Any:
            return made

    registry = Registry(plugins={"simple": Plugin()}, distributions=())
    monkeypatch.setattr(weight_readers, "default_registry", lambda: registry)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(48.0).reshape(6, 8), "b": torch.arange(12.0).reshape(3, 4)}, path)
    return path


def saying(checkpoint: Checkpoint) -> str:
    assert checkpoint.report is not None
    (decision,) = checkpoint.report.decisions
    return decision


def test_a_part_is_read_by_the_dimension_that_leaves_least_and_cut(reader: Simple, model: Path) -> None:
    checkpoint = open_checkpoint(model)
    got = checkpoint.state_dict(slices={"a": PART})
    assert torch.equal(load_file(model)["a"][2:5, 1:3], got["a"])
    assert torch.equal(load_file(model)["b"], got["b"])
    assert reader.asked == [{"a": PART[1]}]
    assert checkpoint.report is not None
    assert (checkpoint.report.bytes_wanted, checkpoint.report.bytes_read) == (24 + 48, 48 + 48)
    assert saying(checkpoint).startswith(
        "slices of 1 tensor in several dimensions are read by one and cut in memory, 24 B"
    )
    assert "reader 'simple' does not declare multi_slices" in str(checkpoint.report)


@pytest.mark.parametrize("meta", [False, True])
def test_a_target_takes_its_part_of_what_was_read(reader: Simple, model: Path, meta: bool) -> None:
    module = torch.nn.Module()
    with torch.device("meta" if meta else "cpu"):
        module.a, module.b = (torch.nn.Parameter(torch.zeros(*shape)) for shape in ((3, 2), (3, 4)))
    checkpoint = open_checkpoint(model)
    checkpoint.load_into(module, slices={"a": PART})
    assert torch.equal(load_file(model)["a"][2:5, 1:3], module.a)
    assert torch.equal(load_file(model)["b"], module.b)
    assert [asked for asked in reader.asked if asked] == [{"a": PART[1]}]
    assert "24 B more than is wanted" in saying(checkpoint)


def test_what_is_packed_is_read_by_its_packed_dimension(reader: Simple, tmp_path: Path) -> None:
    """Rows can be cut in memory; a byte that holds two numbers, of which one is wanted, cannot."""
    path = write_tensors(tmp_path / "m.safetensors", {"x": ("F4", [4, 8], bytes(range(16)))})
    part = (TensorSlice(dim=0, start=1, stop=2), TensorSlice(dim=1, start=2, stop=8))
    got = open_checkpoint(path).state_dict(slices={"x": part})["x"].view(torch.uint8)
    assert got.tolist() == [[5, 6, 7]]
    assert reader.asked == [{"x": part[1]}]


def test_a_tuple_of_one_slice_is_that_slice_and_an_empty_one_is_none(reader: Simple, model: Path) -> None:
    checkpoint = open_checkpoint(model)
    got = checkpoint.state_dict(slices={"a": PART[:1], "b": ()})
    assert torch.equal(load_file(model)["a"][2:5], got["a"])
    assert (got["b"].shape, reader.asked) == ((3, 4), [{"a": PART[0]}])
    assert checkpoint.report is not None
    assert checkpoint.report.decisions == ()


def test_two_slices_of_one_dimension_are_refused_before_a_reader_is_asked(reader: Simple, model: Path) -> None:
    twice = {"a": (PART[0], TensorSlice(dim=-2, stop=1))}
    for ask in (
        lambda: open_checkpoint(model).state_dict(slices=twice),
        lambda: open_checkpoint(model).load_into({"a": torch.zeros(1, 8)}, slices=twice, strict=False),
    ):
        with pytest.raises(SliceError, match=r"^two slices are of dimension 0.*model\.safetensors, tensor 'a'"):
            ask()
    assert reader.asked == []
