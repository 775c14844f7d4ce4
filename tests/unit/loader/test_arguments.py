# SPDX-License-Identifier: Apache-2.0
"""Arguments: none is taken for its truth, and each error names the argument and what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.files import floats, write_tensors
from torch import nn

from weight_readers import ConfigError, SliceError, TensorSlice
from weight_readers_loader import LoadConfig, open_checkpoint
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.cli import cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [2, 2], floats(0, 1, 2, 3))})
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strict", "yes"),
        ("strict", 5),
        ("enable_multithread_weight_load", "no"),
        ("enable_multithread_weight_load", 1),
        ("environment", {}),
        ("reader", 5),
        ("reader", ["x"]),
        ("reader_options", 5),
        ("on_file", 5),
        ("variant", 5),
    ],
)
def test_opening_refuses_an_argument_of_another_type_by_name(folder: Path, name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be .*, not ") as caught:
        open_checkpoint(folder, **{name: value})
    assert str(caught.value).endswith(repr(value))


@pytest.mark.parametrize("value", [1.0, True, "0"])
@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_a_rank_is_a_whole_number_and_nothing_that_equals_one(folder: Path, name: str, value: object) -> None:
    given: dict[str, Any] = {"rank": 0, "world_size": 2} | {name: value}
    with pytest.raises(TypeError, match=f"^{name} must be a whole number.*, not {value!r}"):
        open_checkpoint(folder, **given)


def test_more_threads_than_a_reader_takes_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(ValueError, match="num_weight_load_threads must be at most 1024, not 1025"):
        open_checkpoint(folder, num_weight_load_threads=1025)
    result = CliRunner().invoke(cli, ["load", str(folder), "--num-weight-load-threads", "1025"])
    assert (result.exit_code, "1<=x<=1024" in result.output) == (2, True)


def test_a_long_value_is_shown_in_short(folder: Path) -> None:
    with pytest.raises(TypeError) as caught:
        open_checkpoint(folder, reader=["x" * 100_000])  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


def on_meta() -> nn.Module:
    return nn.ParameterDict({"w": nn.Parameter(torch.empty(2, 2, device="meta"))})


READS: dict[str, Callable[..., Any]] = {
    "iter_weights": lambda checkpoint, **given: list(checkpoint.iter_weights(**given)),
    "state_dict": Checkpoint.state_dict,
    "load_into": lambda checkpoint, **given: checkpoint.load_into(on_meta(), **given),
    "get_tensor": lambda checkpoint, **given: checkpoint.get_tensor("w", **given),
}


@pytest.mark.parametrize(
    ("read", "name"),
    [
        ("iter_weights", "owned"),
        ("get_tensor", "owned"),
        *[("state_dict", name) for name in ("owned", "resolve_aliases", "touch", "show_progress")],
        *[("load_into", name) for name in ("strict", "cast", "owned", "resolve_aliases", "show_progress")],
    ],
)
@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_flag_is_true_or_false_and_nothing_like_it(folder: Path, read: str, name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be True or False, not {value!r}$"):
        READS[read](open_checkpoint(folder), **{name: value})


@pytest.mark.parametrize("read", ["iter_weights", "state_dict"])
@pytest.mark.parametrize("value", [5, "w", {"w"}])
def test_a_filter_is_a_function_of_a_name(folder: Path, read: str, value: object) -> None:
    with pytest.raises(TypeError, match=r"^key_filter must be a function of a name .*, not "):
        READS[read](open_checkpoint(folder), key_filter=value)


@pytest.mark.parametrize("read", ["iter_weights", "state_dict"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "^slices must be a mapping .*, not 5"),
        ({"w": slice(0, 1)}, r"^slices\['w'\] must be a TensorSlice or a tuple of them, not slice\(0, 1, None\)"),
        ({5: TensorSlice(dim=0)}, "^a name in slices must be a str, not 5"),
    ],
)
def test_slices_are_a_mapping_of_names_to_slices(folder: Path, read: str, value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        READS[read](open_checkpoint(folder), slices=value)


@pytest.mark.parametrize("read", ["iter_weights", "state_dict"])
def test_a_slice_of_a_dimension_that_is_not_there_is_refused_also_where_the_filter_leaves_the_tensor_out(
    folder: Path, read: str
) -> None:
    for key_filter in (None, lambda name: name != "w"):
        with pytest.raises(SliceError, match=r"dimension 2 is out of range .*model\.safetensors, tensor 'w'"):
            READS[read](open_checkpoint(folder), key_filter=key_filter, slices={"w": TensorSlice(dim=2)})


@pytest.mark.parametrize("method", [Checkpoint.get_tensor, Checkpoint.get_slice])
@pytest.mark.parametrize("name", [["w"], None])
def test_a_tensor_is_asked_for_by_its_name(folder: Path, method: Callable[..., Any], name: object) -> None:
    with pytest.raises(TypeError, match=r"^name must be a str, not "):
        method(open_checkpoint(folder), name)


BAD_DEVICES = [5, "nope", "", "cpu:7", "cuda:99", torch.device("cuda", 99), "hpu"]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("device", BAD_DEVICES)
def test_a_device_that_is_not_here_is_one_error_with_those_that_are(folder: Path, read: str, device: object) -> None:
    with pytest.raises(ConfigError, match=r"^device=.* is no device that can be used here; there is 'cpu'"):
        READS[read](open_checkpoint(folder), device=device)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("device", ["meta", "meta:0", torch.device("meta")])
def test_the_meta_device_is_refused_and_no_tensor_comes_without_its_values(
    folder: Path, read: str, device: object
) -> None:
    with pytest.raises(ValueError, match=r"no values on the meta device: .* Checkpoint\.tensors has the shapes"):
        READS[read](open_checkpoint(folder), device=device)


@pytest.mark.parametrize("read", ["iter_weights", "state_dict", "get_tensor"])
def test_no_device_at_all_is_the_one_of_the_configuration(folder: Path, read: str) -> None:
    checkpoint = open_checkpoint(folder, config=LoadConfig(device="cuda:99"))
    with pytest.raises(ValueError, match=r"^device='cuda:99' \(engine\) is no device"):
        READS[read](checkpoint, device=None)
    READS[read](checkpoint, device="cpu")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_a_device_may_be_given_as_torch_has_it(folder: Path, read: str, device: object) -> None:
    READS[read](open_checkpoint(folder), device=device)


@pytest.mark.parametrize("reference", [5, b"folder"])
def test_a_reference_is_text_or_a_path(reference: object) -> None:
    with pytest.raises(TypeError, match=r"a str or an os\.PathLike"):
        open_checkpoint(reference)  # type: ignore[arg-type]
