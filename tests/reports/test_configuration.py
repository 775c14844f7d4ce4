# SPDX-License-Identifier: Apache-2.0
"""Reports of users about options, formats that were asked for, and dtypes that changed on the way."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from support.commands import document, invoke
from support.files import floats, write_tensors
from support.tensors import bits

from weight_readers import AdapterError, CheckpointNotFoundError, ConfigError, TargetMismatchError
from weight_readers_loader import LoadConfig, layered, open_checkpoint
from weight_readers_loader.adapters import Dtype

# --- B043: bfloat16 became another dtype without a word -----------------------------------------------------------

BF16 = [struct.pack("<f", value)[2:] for value in (1e38, 1 + 2**-7)]
"""The upper halves of two float32: one beyond the range of float16, one with all bits of a bfloat16."""


@pytest.fixture
def bfloat16(tmp_path: Path) -> Path:
    return write_tensors(
        tmp_path / "model.safetensors", {"big": ("BF16", [2], b"".join(BF16)), "small": ("BF16", [1], BF16[1])}
    )


def test_b043_the_dtype_of_the_file_comes_with_every_bit(bfloat16: Path) -> None:
    found = open_checkpoint(bfloat16).state_dict()
    assert found["big"].dtype is torch.bfloat16
    assert bits(found["big"]) == b"".join(BF16)
    with pytest.raises(TargetMismatchError, match=r"of another dtype: .*cast=True \(--cast\) converts"):
        open_checkpoint(bfloat16).load_into({"big": torch.zeros(2), "small": torch.zeros(1)})


def test_b043_what_is_converted_on_request_is_counted(bfloat16: Path) -> None:
    data = document(invoke("load", bfloat16, "--dtype", "float32", "--json"))
    assert data["report"]["cast"] == {"bfloat16 -> float32": 2}
    found = open_checkpoint(bfloat16, config=LoadConfig(dtype="float32")).state_dict()
    assert bits(found["big"]) == b"".join(b"\0\0" + half for half in BF16)


def test_b043_a_number_beyond_the_range_is_an_error_with_the_way_out(bfloat16: Path) -> None:
    with pytest.raises(AdapterError, match=r"1 number of it would become infinite as float16: .*tensor 'big'"):
        open_checkpoint(bfloat16, adapters=[Dtype("float16")]).state_dict()
    done = invoke("load", bfloat16, "--dtype", "fp16", "--keep-dtype", "big", "--json")
    assert document(done)["report"]["cast"] == {"bfloat16 -> float16": 1}


def test_b043_what_was_infinite_before_stays_so(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"w": ("F32", [2], floats(float("inf"), 1))})
    found = open_checkpoint(path, adapters=[Dtype("float16")]).state_dict()
    assert found["w"].tolist() == [float("inf"), 1.0]


# --- B071: a format that was asked for was replaced by another ----------------------------------------------------


@pytest.mark.parametrize("command", ["load", "explain", "inspect"])
def test_b071_safetensors_asked_for_where_only_bin_is_there_is_an_error_that_names_it(
    tmp_path: Path, command: str
) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    done = invoke(command, tmp_path, "--format", "safetensors")
    assert done.exit_code == 1
    assert "pytorch_model.bin" in done.stderr
    with pytest.raises(CheckpointNotFoundError, match=r"pytorch_model\.bin"):
        open_checkpoint(tmp_path, use_format="safetensors")
    assert "chosen: pt" in invoke("explain", tmp_path).stdout


# --- B078: a documented option was refused, or dropped and refused later ------------------------------------------


@pytest.mark.parametrize(
    ("reader", "option", "owner"),
    [
        ("safetensors", "num_threads=2", "'threaded'"),
        ("threaded", "prefetch=2", "'gguf', 'pt', 'safetensors'"),
        ("pt", "dequantize=bf16", "'gguf'"),
    ],
)
def test_b078_an_option_of_one_reader_with_another_is_refused_before_any_file_is_looked_at(
    reader: str, option: str, owner: str
) -> None:
    done = invoke("load", "no/such/place", "--reader", reader, "--option", option)
    assert done.exit_code == 2
    name = option.partition("=")[0]
    expected = f"Error: reader '{reader}' has no option '{name}' (--option). It is an option of {owner}"
    assert done.stderr.strip() == expected


def test_b078_mapping_and_direct_io_exclude_each_other_wherever_they_come_from(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"w": ("F32", [1], floats(1))})
    config = layered(engine={"reader": "safetensors"}, stage={"direct_io": "on"}, environ={})
    with pytest.raises(ImportError, match="has no option direct_io"):
        open_checkpoint(path, config=config)


def test_b078_every_documented_option_is_taken() -> None:
    every = {
        "reader": "threaded",
        "prefer": ["threaded"],
        "strict": True,
        "enable_multithread_weight_load": True,
        "num_weight_load_threads": 2,
        "enable_broadcast_weight_load": False,
        "max_in_flight_bytes": "1MiB",
        "direct_io": "off",
        "prefetch": 0,
        "host_budget": "8GiB",
        "verify": "SHA256SUMS",
        "cache_dir": "copies",
        "device": "cpu",
        "dequantize": None,
        "adapters": [{"name": "prefix", "add": "a."}],
        "dtype": "float16",
        "keep_dtype": ["*.norm.*"],
        "reader_options": {"huge_pages": True},
    }
    assert set(every) == set(LoadConfig.model_fields)
    assert LoadConfig(**every).num_weight_load_threads == 2  # type: ignore[arg-type]


def test_b078_an_option_that_there_is_not_is_refused_with_the_close_match() -> None:
    with pytest.raises(ConfigError, match=r"no option 'enable_multithread_weights_load'\. Did you mean"):
        layered(stage={"enable_multithread_weights_load": True}, environ={})
