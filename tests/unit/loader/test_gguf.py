# SPDX-License-Identifier: Apache-2.0
"""A GGUF checkpoint through the loader: resolved, checked, listed, loaded packed and as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import (
    MissingShardError,
    MissingTensorError,
    NoSuitableReaderError,
    TargetMismatchError,
    TensorSlice,
)
from weight_readers_gguf import prepare_module
from weight_readers_loader import open_checkpoint
from weight_readers_loader.cli import cli

F32, Q8_0 = 0, 8
ROWS, COLUMNS = 4, 64


def quantized(seed: int) -> tuple[tuple[int, tuple[int, int], bytes], torch.Tensor]:
    """A tensor for the file, and its numbers by the gguf package."""
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    blocks = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    numbers = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
    return (Q8_0, (ROWS, COLUMNS), blocks.tobytes()), torch.from_numpy(np.array(numbers))


WEIGHT, NUMBERS = quantized(0)
BIAS = np.arange(ROWS, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = {"fc.weight": WEIGHT, "fc.bias": (F32, (ROWS,), BIAS.tobytes())}
    return write_gguf(tmp_path / "tiny-Q8_0.gguf", tensors, {"general.architecture": "tiny", "tokens": ["a", "b"]})


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    """Three parts with a tensor each."""
    return [
        write_gguf(
            tmp_path / f"tiny-{number + 1:05d}-of-00003.gguf",
            {f"{number}.weight": quantized(number)[0]},
            {"split.no": ("UINT16", number), "split.count": ("UINT16", 3), "split.tensors.count": ("INT32", 3)},
        )
        for number in range(3)
    ]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def test_a_module_with_packed_parameters_is_filled_with_the_bytes_of_the_file(path: Path) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Module()
            self.fc.register_parameter("qweight", nn.Parameter(torch.empty(ROWS, 68, dtype=torch.uint8), False))
            self.fc.register_parameter("bias", nn.Parameter(torch.empty(ROWS)))

    module = Packed()
    report = open_checkpoint(path).load_into(module)
    assert module.fc.qweight.detach().numpy().tobytes() == WEIGHT[2]
    assert module.fc.bias.tolist() == BIAS.tolist()
    assert (report.missing, report.unexpected) == ((), ())


def test_a_module_prepared_for_a_type_is_not_filled_with_blocks_of_another_of_the_same_size(tmp_path: Path) -> None:
    q4_0, iq4_nl = (
        write_gguf(tmp_path / f"{type_id}.gguf", {"fc.weight": (type_id, (2, 32), bytes(36))}) for type_id in (2, 20)
    )
    model = nn.ModuleDict({"fc": nn.Linear(32, 2, bias=False, device="meta")})
    prepare_module(model, q4_0)
    said = r"fc\.qweight \(checkpoint IQ4_NL, ggml type 20, target ggml type 2"
    for _ in range(2):  # without memory, then with
        with pytest.raises(TargetMismatchError, match=said):
            open_checkpoint(iq4_nl).load_into(model, cast=True)
        open_checkpoint(q4_0).load_into(model)


def test_a_dense_module_is_told_that_the_file_is_packed_and_what_to_do(path: Path) -> None:
    module = nn.ModuleDict({"fc": nn.Linear(COLUMNS, ROWS)})
    with pytest.raises(TargetMismatchError) as caught:
        open_checkpoint(path).load_into(module)
    said = str(caught.value)
    assert "fc.weight (checkpoint [4, 64] packed as Q8_0, [4, 68], target [4, 64])" in said
    assert "dequantize='bfloat16' (--dequantize bfloat16) reads numbers" in said
    assert "prepare_module" in said


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_a_dense_module_is_filled_with_numbers_on_request(path: Path, dtype: str) -> None:
    as_torch = {"float32": torch.float32, "bf16": torch.bfloat16}[dtype]
    module = nn.ModuleDict({"fc": nn.Linear(COLUMNS, ROWS, dtype=as_torch)})
    checkpoint = open_checkpoint(path, dequantize=dtype)
    checkpoint.load_into(module, cast=dtype == "bf16")
    assert torch.equal(NUMBERS.to(as_torch), module["fc"].weight)


def test_slices_count_logical_elements(path: Path) -> None:
    parts = {"fc.weight": TensorSlice(dim=1, start=32, stop=64)}
    tensor = open_checkpoint(path).state_dict(key_filter=parts.__contains__, slices=parts)["fc.weight"]
    rows = np.frombuffer(WEIGHT[2], np.uint8).reshape(ROWS, 2, 34)
    assert np.array_equal(rows[:, 1], tensor.numpy())


def test_dequantize_is_refused_where_no_reader_of_the_format_has_it(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "m.safetensors")
    with pytest.raises(NoSuitableReaderError, match="dequantize"):
        open_checkpoint(tmp_path, dequantize="bf16")


def test_a_dtype_that_is_none_is_refused_before_the_file_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"option 'dequantize' must be 'float32', .* or 'fp16', not 'int4'"):
        open_checkpoint(tmp_path / "nothing.gguf", dequantize="int4")


@pytest.mark.parametrize("given", ["first", "last", "folder"])
def test_a_split_model_is_whole_from_any_part_and_from_its_folder(split: list[Path], given: str) -> None:
    reference = {"first": split[0], "last": split[2], "folder": split[0].parent}[given]
    checkpoint = open_checkpoint(reference)
    assert list(checkpoint.tensors) == ["0.weight", "1.weight", "2.weight"]
    assert len(checkpoint.state_dict()) == 3


@pytest.mark.parametrize("given", ["part", "folder"])
def test_a_missing_part_is_a_missing_shard(split: list[Path], given: str) -> None:
    split[1].unlink()
    with pytest.raises(MissingShardError, match=r"tiny-00002-of-00003\.gguf"):
        open_checkpoint(split[2] if given == "part" else split[0].parent)


def test_inspect_lists_types_and_metadata_and_no_vocabulary(path: Path) -> None:
    done = run("inspect", path, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    weight = next(tensor for tensor in found["tensors"] if tensor["name"] == "fc.weight")
    assert (weight["source_dtype"], weight["shape"], weight["parameter"]) == ("Q8_0", [4, 64], "fc.qweight")
    (metadata,) = found["metadata"].values()
    assert metadata == {"general.architecture": "tiny", "tokens": "ARRAY[STRING]"}


def test_load_dequantizes_from_the_command_line(path: Path) -> None:
    done = run("load", path, "--dequantize", "bf16", "--no-progress", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"]["selection"]["chosen"] == "gguf"


def test_explain_hands_over_what_a_load_would_ask(path: Path) -> None:
    done = run("explain", path, "--dequantize", "bf16", "--json")
    assert json.loads(done.stdout)["selection"]["request"]["options"] == {"dequantize": "bfloat16"}


def test_a_cut_file_is_named_with_the_bytes_it_lacks(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-17])  # the last 16 bytes only fill up to the alignment
    done = run("verify", path)
    assert done.exit_code == 1
    assert "fc.bias" in done.stderr
    assert "corrupt" not in done.stderr


def test_verify_reports_a_tensor_of_a_type_that_nobody_knows(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"fc.weight": WEIGHT, "new.weight": (99, (1, 32), bytes(64))})
    done = run("verify", path)
    assert done.exit_code == 1
    assert "type 99 is unknown" in done.stderr
    assert "new.weight" in done.stderr


def test_a_missing_part_is_one_problem(split: list[Path]) -> None:
    split[1].unlink()
    done = run("verify", split[0].parent, "--json")
    assert [error["error"] for error in json.loads(done.stdout)["errors"]] == ["MissingShardError"]


def test_a_name_that_is_not_there_brings_the_close_one_and_the_file(path: Path) -> None:
    with pytest.raises(MissingTensorError, match=r"tiny-Q8_0\.gguf, tensor 'fc\.wieght'.*Did you mean 'fc\.weight'\?"):
        open_checkpoint(path).get_tensor("fc.wieght")
