# SPDX-License-Identifier: Apache-2.0
"""`examples/engines`: a state dict as ComfyUI's ``load_torch_file`` gives it.

ComfyUI is no package that an index has: what it does is restated from its ``comfy/utils.py`` in the two libraries that
it calls, safetensors and torch.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from weight_readers_engines.comfyui import load_torch_file

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.ones(4, dtype=torch.float16)}


def assert_same(expected: dict[str, torch.Tensor], found: object) -> None:
    assert isinstance(found, dict)
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_the_parameters_are_those_of_comfyui() -> None:
    parameters = inspect.signature(load_torch_file).parameters
    assert [(p.name, p.default) for p in parameters.values()][:4] == [
        ("ckpt", inspect.Parameter.empty),
        ("safe_load", False),
        ("device", None),
        ("return_metadata", False),
    ]


@pytest.mark.parametrize("metadata", [None, {"modelspec.title": "tiny"}])
def test_a_safetensors_file_with_its_metadata(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata=metadata)
    found, said = load_torch_file(str(path), safe_load=True, device=torch.device("cpu"), return_metadata=True)
    with safe_open(path, framework="pt") as file:
        expected = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        assert (file.metadata() or None) == said
    assert_same(expected, found)


def test_a_ckpt_file_with_its_weights_below_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": TENSORS, "epoch": 3}, path)
    assert_same(torch.load(path, weights_only=True)["state_dict"], load_torch_file(str(path)))


def test_a_gguf_file_needs_a_dtype_and_is_numbers_then(tmp_path: Path) -> None:
    path, kind = tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quantize(np.random.default_rng(0).standard_normal((4, 32), dtype=np.float32), kind)
    writer = gguf.GGUFWriter(path, "tiny")
    writer.add_tensor("fc.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="pass dequantize="):
        load_torch_file(str(path))
    expected = {"fc.weight": torch.from_numpy(gguf.dequantize(packed, kind))}
    assert_same(expected, load_torch_file(str(path), dequantize="float32"))
