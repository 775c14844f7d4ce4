# SPDX-License-Identifier: Apache-2.0
"""Which method each layer gets, by what the header says of its tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from unit.gguf.gguf_bytes import write_gguf
from unit.gguf.packed_layers import EngineEmbedding, EngineLinear, Held, blocks, config_of, create, numbers, write_file

from weight_readers import (
    CheckpointError,
    DuplicateTensorError,
    MissingTensorError,
    TargetMismatchError,
    UnknownDtypeError,
    UnsupportedDtypeError,
)
from weight_readers_gguf.methods import (
    GGUFConfig,
    GGUFEmbeddingMethod,
    GGUFLinearMethod,
    UnquantizedLinearMethod,
    check_description,
    describe,
)

HELD: Held = {
    "embed.weight": ("Q8_0", blocks("Q8_0", 8, 32)),
    "up.weight": ("Q4_0", blocks("Q4_0", 4, 32)),
    "down.weight": ("BF16", numbers(32, 4, dtype=torch.bfloat16)),
    "types.weight": ("F32", numbers(2, 32)),
    "norm.weight": ("F32", numbers(32)),
}


@pytest.fixture
def config(tmp_path: Path) -> GGUFConfig:
    return config_of(tmp_path, HELD)


@pytest.mark.parametrize(
    ("prefix", "layer", "kind"),
    [
        ("up", nn.Linear(32, 4), GGUFLinearMethod),
        ("up", EngineLinear(32, [4]), GGUFLinearMethod),
        ("embed", nn.Embedding(8, 32), GGUFEmbeddingMethod),
        ("embed", EngineEmbedding(8, 32, padded=64), GGUFEmbeddingMethod),
        ("down", nn.Linear(4, 32), UnquantizedLinearMethod),
        ("types", nn.Embedding(2, 32), type(None)),
        ("norm", nn.LayerNorm(32), type(None)),
        ("attn", nn.Module(), type(None)),
    ],
)
def test_a_layer_gets_the_method_of_its_tensor(
    config: GGUFConfig, prefix: str, layer: nn.Module, kind: type[object]
) -> None:
    assert type(config.get_quant_method(layer, prefix)) is kind


def test_layers_that_took_a_packed_method_are_recorded(config: GGUFConfig) -> None:
    config.get_quant_method(nn.Linear(32, 4), "up")
    config.get_quant_method(nn.Linear(4, 32), "down")
    assert config.selected == {"up"}


def test_packed_tensors_that_no_layer_took_are_listed(config: GGUFConfig) -> None:
    config.get_quant_method(nn.Linear(32, 4), "up")
    assert config.unconsumed() == ["embed.weight"]
    config.get_quant_method(nn.Embedding(8, 32), "embed")
    assert config.unconsumed() == []


def test_tensors_of_layers_that_are_not_built_can_be_forgotten(config: GGUFConfig) -> None:
    config.retain(lambda name: not name.startswith("embed"))
    config.get_quant_method(nn.Linear(32, 4), "up")
    assert config.unconsumed() == []
    with pytest.raises(MissingTensorError):
        config.get_quant_method(nn.Embedding(8, 32), "embed")


def test_a_layer_without_a_tensor_is_named_with_the_file_and_the_close_match(config: GGUFConfig) -> None:
    with pytest.raises(MissingTensorError) as caught:
        config.get_quant_method(nn.Linear(32, 4), "upp")
    assert str(caught.value) == (
        f"the file has no tensor for layer 'upp': {config.files[0]}, tensor 'upp.weight'. Did you mean 'up.weight'?"
    )
    with pytest.raises(MissingTensorError, match="Check the rename"):
        config.get_quant_method(nn.Linear(32, 4), "something.else.entirely")


def test_a_fused_layer_that_misses_a_shard_names_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"mlp.gate_proj.weight": HELD["up.weight"]})
    with pytest.raises(MissingTensorError, match=r"layer 'mlp.gate_up_proj'.*tensor 'mlp.up_proj.weight'"):
        config.get_quant_method(EngineLinear(32, [4, 4]), "mlp.gate_up_proj")


def test_a_packed_weight_of_a_layer_that_is_neither_linear_nor_embedding_is_refused(config: GGUFConfig) -> None:
    with pytest.raises(TargetMismatchError, match=r"layer 'up' \(Conv1d\) is neither linear nor an embedding"):
        config.get_quant_method(nn.Conv1d(1, 1, 1), "up")


@pytest.mark.parametrize(
    ("type_id", "nbytes", "kind", "said"),
    [
        (9, 36, UnsupportedDtypeError, "Q8_1"),
        (36, 32, UnknownDtypeError, "IQ4_NL_4_4"),
        (99, 32, UnknownDtypeError, "type 99"),
    ],
)
def test_a_type_that_nothing_computes_with_is_named(
    tmp_path: Path, type_id: int, nbytes: int, kind: type[CheckpointError], said: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"w.weight": (type_id, (1, 32), bytes(nbytes))})
    with pytest.raises(kind, match=said) as caught:
        GGUFConfig.from_file(path).get_quant_method(nn.Linear(32, 1), "w")
    assert caught.value.tensor == "w.weight"


def test_it_cannot_be_made_from_a_models_config() -> None:
    with pytest.raises(ValueError, match=r"Use GGUFConfig.from_file"):
        GGUFConfig.from_config({"quant_method": "gguf"})


def test_one_file_of_a_split_set_stands_for_all(tmp_path: Path) -> None:
    for number, name in enumerate(("up.weight", "embed.weight")):
        metadata = {"split.no": ("UINT16", number), "split.count": ("UINT16", 2), "split.tensors.count": ("INT32", 2)}
        write_file(tmp_path / f"m-{number + 1:05d}-of-00002.gguf", {name: HELD[name]}, metadata)
    config = GGUFConfig.from_file(tmp_path / "m-00002-of-00002.gguf")
    assert set(config.tensors) == {"up.weight", "embed.weight"}


def test_files_with_faults_are_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", HELD)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(CheckpointError):
        GGUFConfig.from_file([path])


def test_what_engines_ask_a_config_is_answered(config: GGUFConfig) -> None:
    assert config.get_name() == "gguf"
    assert config.get_min_capability() == 60
    assert set(config.get_supported_act_dtypes()) == {torch.float32, torch.float16, torch.bfloat16}
    assert config.get_config_filenames() == []
    assert config.get_scaled_act_names() == []


PACKED = ("embed.weight", "up.weight")


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"model.{name}" if name == "up.weight" else None,
        {"up": "model.up", "embed": "e", "down": "d"},
        {"up.weight": "model.up.weight", "up": "not this one"},
    ],
    ids=["function", "leading parts", "the longest counts"],
)
def test_names_in_the_file_become_those_of_the_model(tmp_path: Path, rename: Any) -> None:
    config = config_of(tmp_path, HELD, rename=rename)
    assert isinstance(config.get_quant_method(nn.Linear(32, 4), "model.up"), GGUFLinearMethod)
    assert config.parameters["up.weight"] == "model.up.qweight"


def test_a_leading_part_ends_at_a_dot(tmp_path: Path) -> None:
    held = {"blk.1.up.weight": HELD["up.weight"], "blk.10.up.weight": HELD["up.weight"]}
    config = config_of(tmp_path, held, rename={"blk.1": "first"})
    assert set(config.tensors) == {"first.up.weight", "blk.10.up.weight"}


def test_two_tensors_that_get_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DuplicateTensorError, match=r"'embed.weight' and 'up.weight' .* are both 'x.qweight'"):
        config_of(tmp_path, HELD, rename=lambda name: "x.weight" if name in PACKED else name)


def test_packed_bytes_must_not_meet_a_tensor_of_their_parameters_name(tmp_path: Path) -> None:
    held = {"up.weight": HELD["up.weight"], "raw": ("F32", numbers(2))}
    with pytest.raises(DuplicateTensorError, match=r"'up.weight' and 'raw' .* are both 'up.qweight'"):
        config_of(tmp_path, held, rename={"raw": "up.qweight"})


def test_a_tied_layer_takes_the_tensor_of_the_other(tmp_path: Path) -> None:
    config = config_of(tmp_path, HELD, tied={"lm_head": "embed"})
    assert isinstance(config.get_quant_method(nn.Linear(32, 8), "lm_head"), GGUFLinearMethod)


def test_an_engines_own_mapping_of_fused_layers_is_used(tmp_path: Path) -> None:
    held = {"b.w1.weight": HELD["up.weight"], "b.w3.weight": HELD["up.weight"]}
    config = config_of(tmp_path, held)
    config.packed_modules_mapping = {"w13": ["w1", "w3"]}
    assert isinstance(config.get_quant_method(EngineLinear(32, [4, 4]), "b.w13"), GGUFLinearMethod)
    assert config.unconsumed() == []


def test_a_partition_of_the_input_can_be_asked_about(tmp_path: Path) -> None:
    held = {"a.weight": ("Q4_K", blocks("Q4_K", 1, 1024)), "b.weight": ("F16", numbers(2, 6).half())}
    config = config_of(tmp_path, held)
    assert config.supports_input_partition("a", 512)
    assert not config.supports_input_partition("a", 128)
    assert not config.supports_input_partition("a", 0)
    assert config.supports_input_partition("b", 3)


def test_an_unquantized_layer_has_a_weight_in_the_models_dtype(config: GGUFConfig) -> None:
    layer = EngineLinear(4, [32])
    method = create(config, layer, "down", torch.float32, weight_loader="theirs")
    weight: Any = layer.get_parameter("weight")
    assert (weight.dtype, tuple(weight.shape), weight.requires_grad) == (torch.float32, (32, 4), False)
    assert (weight.input_dim, weight.output_dim, weight.weight_loader) == (1, 0, "theirs")
    weight.data = numbers(32, 4)
    x, bias = numbers(3, 4), numbers(32, dtype=torch.bfloat16)
    assert method.apply(layer, x, bias).equal(linear(x, weight, bias.float()))
    method.process_weights_after_loading(layer)


def test_an_unquantized_layer_of_another_shape_is_refused(config: GGUFConfig) -> None:
    layer = EngineLinear(4, [31])
    with pytest.raises(TargetMismatchError, match=r"it has down.weight \[32, 4\]; the layer wants \[31, 4\]"):
        create(config, layer, "down")
    assert list(layer.parameters()) == []


def described(folder: Path, name: str) -> tuple[nn.Module, dict[str, Any]]:
    folder.mkdir()
    layer = EngineLinear(32, [4])
    create(config_of(folder, {"w.weight": (name, blocks(name, 4, 32))}), layer, "w")
    return layer, describe(layer)


def test_a_description_tells_types_of_one_size_apart(tmp_path: Path) -> None:
    layer, own = described(tmp_path / "a", "Q4_0")
    _, other = described(tmp_path / "b", "IQ4_NL")
    check_description(layer, json.loads(json.dumps(own)))
    with pytest.raises(TargetMismatchError, match=r"it holds Q4_0\[4 rows\] \[4, 32\], they are IQ4_NL\[4 rows\]"):
        check_description(layer, other)
    with pytest.raises(TargetMismatchError, match="they are nothing known"):
        check_description(layer, {})


def test_a_description_has_every_part(tmp_path: Path) -> None:
    held = {"gate_proj.weight": HELD["up.weight"], "up_proj.weight": HELD["embed.weight"]}
    layer = EngineLinear(32, [4, 8])
    create(config_of(tmp_path, held), layer, "gate_up_proj")
    assert describe(layer) == {
        "format": "gguf",
        "shape": [12, 32],
        "parts": [
            {"type": "Q4_0", "ggml_type": 2, "rows": 4, "row_bytes": 18},
            {"type": "Q8_0", "ggml_type": 8, "rows": 8, "row_bytes": 34},
        ],
    }


@pytest.mark.parametrize("argument", ["rename", "packed_modules_mapping", "tied"])
@pytest.mark.parametrize("wrong", [5, "zz", ["a"]], ids=str)
def test_an_argument_of_another_kind_is_refused_by_its_name(tmp_path: Path, argument: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"^{argument} must be "):
        config_of(tmp_path, {"w.weight": ("Q8_0", blocks("Q8_0", 1, 32))}, **{argument: wrong})


@pytest.mark.parametrize("damaged", [5, None, "x", {"parts": 5}, {"parts": [5]}], ids=str)
def test_a_damaged_description_is_refused(tmp_path: Path, damaged: Any) -> None:
    config = config_of(tmp_path, {"w.weight": ("Q8_0", blocks("Q8_0", 2, 32))})
    layer = EngineLinear(32, [2])
    method = create(config, layer, "w")
    with pytest.raises(TargetMismatchError, match="the saved bytes are not those of layer 'w'"):
        check_description(layer, damaged)
    with pytest.raises(TypeError, match="layer 'w' is loaded from a tensor, not"):
        method.load_shard(layer, damaged)
    with pytest.raises(TypeError, match="layer 'w' takes a tensor as input, not"):
        method.apply(layer, damaged)
