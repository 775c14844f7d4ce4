# SPDX-License-Identifier: Apache-2.0
"""Models of several components, in the layout of a diffusers pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import invoke
from support.files import floats, write_sharded, write_tensors

from weight_readers import CheckpointNotFoundError, UnsafePathError
from weight_readers_loader import open_checkpoint


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Three components with weights, and two folders without any."""
    root = tmp_path / "pipeline"
    write_sharded(root / "transformer", 2)
    write_tensors(root / "text_encoder" / "model.safetensors", {"e": ("F32", [1], floats(1))})
    write_tensors(root / "vae" / "diffusion_pytorch_model.safetensors", {"v": ("F32", [1], floats(2))})
    for folder in ("scheduler", "tokenizer"):
        (root / folder).mkdir()
        (root / folder / "config.json").write_text("{}")
    (root / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    return root


@pytest.mark.parametrize(
    ("subfolder", "names"), [("transformer", ["t1", "t2"]), ("text_encoder", ["e"]), ("vae", ["v"])]
)
def test_each_component_is_a_checkpoint(pipeline: Path, subfolder: str, names: list[str]) -> None:
    checkpoint = open_checkpoint(pipeline, subfolder=subfolder)
    assert sorted(checkpoint.state_dict()) == names
    assert checkpoint.layout.root == str(pipeline / subfolder)


def test_the_whole_folder_is_refused_with_its_components_by_name(pipeline: Path) -> None:
    with pytest.raises(CheckpointNotFoundError) as caught:
        open_checkpoint(pipeline)
    assert "a model of several components" in str(caught.value)
    assert "text_encoder, transformer, vae" in str(caught.value)
    assert "scheduler" not in str(caught.value)
    assert "subfolder='transformer' (--subfolder transformer)" in str(caught.value)


def test_an_unknown_component_is_refused_with_those_that_are_there(pipeline: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="one of text_encoder, transformer, vae") as caught:
        open_checkpoint(pipeline, subfolder="nothing alike")
    assert caught.value.fix == "Pass subfolder='transformer' (--subfolder transformer)."


def test_a_mistyped_component_is_answered_with_the_one_that_was_meant(pipeline: Path) -> None:
    with pytest.raises(CheckpointNotFoundError) as caught:
        open_checkpoint(pipeline, subfolder="trasformer")
    assert caught.value.fix == "Pass subfolder='transformer' (--subfolder transformer)."


def test_a_component_without_weights_is_refused(pipeline: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no weight files here"):
        open_checkpoint(pipeline, subfolder="scheduler")


@pytest.mark.parametrize("subfolder", ["..", "../pipeline/vae", "/", "", "vae/..", "a\\b", "vae/"])
def test_a_name_that_leads_elsewhere_is_refused(pipeline: Path, subfolder: str) -> None:
    with pytest.raises(UnsafePathError, match="no plain name below the folder") as caught:
        open_checkpoint(pipeline, subfolder=subfolder)
    assert caught.value.fix == "Give the folder itself as the reference."


def test_a_component_of_a_file_is_refused(pipeline: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="a reference that is a file"):
        open_checkpoint(pipeline / "vae" / "diffusion_pytorch_model.safetensors", subfolder="vae")


def test_what_is_no_text_is_refused(pipeline: Path) -> None:
    with pytest.raises(TypeError, match="subfolder"):
        open_checkpoint(pipeline, subfolder=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["inspect", "verify", "explain", "load", "bench"])
def test_every_command_takes_a_component(pipeline: Path, command: str) -> None:
    rounds = ["--rounds", "1"] if command == "bench" else []
    done = invoke(command, pipeline, "--subfolder", "vae", *rounds)
    assert done.exit_code == 0, done.stderr
    refused = invoke(command, pipeline)
    assert refused.exit_code == 1
    assert "--subfolder transformer" in refused.stderr
