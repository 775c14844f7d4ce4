# SPDX-License-Identifier: Apache-2.0
"""``:Q4_K_M`` behind a reference: the one GGUF model that is meant, in a local folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import invoke
from support.hub_models import quantized_repository
from support.object_server import ObjectServer, only_loopback

from weight_readers import AmbiguousCheckpointError, CheckpointNotFoundError
from weight_readers_loader import open_checkpoint
from weight_readers_loader.resolve import resolve
from weight_readers_loader.resolve.selectors import quantizations


def folder_of(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")
    return tmp_path


@pytest.fixture
def published(tmp_path: Path) -> Path:
    for name, data in quantized_repository().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("Q4_K_M", ["Tiny-Q4_K_M.gguf"]),
        ("q4_k_m", ["Tiny-Q4_K_M.gguf"]),
        ("UD-Q4_K_M", ["Tiny-UD-Q4_K_M.gguf"]),
        ("Q8_0", ["tiny.q8_0.gguf"]),
        ("bf16", ["Tiny-BF16-00001-of-00002.gguf", "Tiny-BF16-00002-of-00002.gguf"]),
        ("F16", ["mmproj-F16.gguf"]),
    ],
)
def test_a_selector_means_exactly_one_model(published: Path, selector: str, names: list[str]) -> None:
    assert names == [file.name for file in resolve(f"{published}:{selector}").files]


def test_the_selected_model_is_loaded(published: Path) -> None:
    state = open_checkpoint(f"{published}:BF16").state_dict()
    assert {name: values.tolist() for name, values in state.items()} == {"w0": [4.0] * 4, "w1": [5.0] * 4}


@pytest.mark.parametrize("selector", ["Q4_K", "K_M", "Q4", "Q5_K_M", "M", "Tin"])
def test_a_part_of_a_quantization_is_none_and_the_others_are_listed(published: Path, selector: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no GGUF file of this quantization") as caught:
        resolve(f"{published}:{selector}")
    assert "BF16/Tiny-BF16-00001-of-00002.gguf (2 of 2 shards)" in str(caught.value.found)
    assert caught.value.fix == "Give one of those that are there: :Q4_K_M, :UD-Q4_K_M, :F16, :q8_0, :BF16."


def test_where_no_gguf_file_is_the_weights_that_are_there_are_named(tmp_path: Path) -> None:
    folder_of(tmp_path, "model.safetensors", "config.json")
    with pytest.raises(CheckpointNotFoundError, match="no GGUF files here") as caught:
        resolve(f"{tmp_path}:Q4_0")
    assert (caught.value.found, caught.value.fix) == (
        "model.safetensors (format safetensors)",
        "Leave out :Q4_0.",
    )


@pytest.mark.parametrize("option", ["--format safetensors", "--variant fp16"])
def test_what_excludes_a_selector_is_wrong_usage_with_what_to_leave_out(published: Path, option: str) -> None:
    done = invoke("load", f"{published}:Q4_K_M", *option.split())
    assert done.exit_code == 2
    assert f"({option}). Leave out one of them: :Q4_K_M, or " in done.stderr


def test_several_models_of_a_quantization_are_listed(tmp_path: Path) -> None:
    folder_of(tmp_path, "a-Q4_0.gguf", "b.Q4_0.gguf", "Q4_0/c.gguf", "Q4_0/d-Q8_0.gguf")
    with pytest.raises(AmbiguousCheckpointError) as caught:
        resolve(f"{tmp_path}:Q4_0")
    assert caught.value.found == "a-Q4_0.gguf, b.Q4_0.gguf, Q4_0/c.gguf"


@pytest.mark.parametrize("other", ["mmproj-Q8_0.gguf", "m.mmproj-Q8_0.gguf"])
def test_a_projector_stands_back_for_the_model_it_serves(tmp_path: Path, other: str) -> None:
    folder_of(tmp_path, "m-Q8_0.gguf", other)
    assert [file.name for file in resolve(f"{tmp_path}:Q8_0").files] == ["m-Q8_0.gguf"]
    assert [file.name for file in resolve(tmp_path).files] == ["m-Q8_0.gguf"]


def test_an_importance_matrix_is_no_model(tmp_path: Path) -> None:
    folder_of(tmp_path, "m-Q8_0.gguf", "m-imatrix.gguf", "imatrix_unsloth.gguf")
    assert [file.name for file in resolve(tmp_path).files] == ["m-Q8_0.gguf"]


def test_several_quantizations_and_no_selector_say_how_to_choose(tmp_path: Path) -> None:
    folder_of(tmp_path, "m-Q8_0.gguf", "m-Q4_0.gguf")
    with pytest.raises(AmbiguousCheckpointError, match="REF:Q4_K_M"):
        resolve(tmp_path)


def test_a_folder_of_the_whole_text_wins_over_a_selector(tmp_path: Path) -> None:
    folder_of(tmp_path, "m/a-Q4_0.gguf", "m:Q4_0/b.gguf")
    assert [file.name for file in resolve(f"{tmp_path}/m:Q4_0").files] == ["b.gguf"]


@pytest.mark.parametrize("keywords", [{"use_format": "safetensors"}, {"variant": "fp16"}])
def test_a_selector_and_what_is_no_gguf_exclude_each_other(published: Path, keywords: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="chooses a GGUF file"):
        resolve(f"{published}:Q4_K_M", **keywords)


def test_a_selector_chooses_within_the_subfolder(published: Path) -> None:
    assert len(resolve(f"{published}:BF16", subfolder="BF16").files) == 2
    with pytest.raises(CheckpointNotFoundError, match="no GGUF file"):
        resolve(f"{published}:Q4_K_M", subfolder="BF16")


def test_a_missing_part_of_the_selected_set_is_missing(published: Path) -> None:
    (published / "BF16" / "Tiny-BF16-00002-of-00002.gguf").unlink()
    with pytest.raises(FileNotFoundError, match="Tiny-BF16-00002-of-00002"):
        resolve(f"{published}:BF16")


def test_a_selector_behind_a_prefix_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"models/tiny/{name}": data for name, data in quantized_repository().items()}
    with ObjectServer(files).running() as server:
        only_loopback(monkeypatch, server.endpoint)
        layout = resolve("s3://models/tiny:Q8_0")
        assert layout.paths == ("s3://models/tiny/tiny.q8_0.gguf",)
        assert len(resolve("s3://models/tiny:bf16").files) == 2


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("m.IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-UD-Q6_K_XL-00001-of-00003.gguf", "UD-Q6_K_XL"),
        ("F16/m-F16.gguf", "F16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("m.i1-Q4_0.gguf", "Q4_0"),
        ("m-TQ1_0.gguf", "TQ1_0"),
    ],
)
def test_quantizations_are_read_off_the_usual_names(name: str, quantization: str) -> None:
    assert quantizations([name]) == [quantization]


def test_a_file_without_a_quantization_has_none() -> None:
    assert quantizations(["model.gguf", "qwen3-F.gguf"]) == []
