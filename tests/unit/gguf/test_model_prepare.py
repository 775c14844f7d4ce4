# SPDX-License-Identifier: Apache-2.0
"""A model is made ready for a file as a whole, or refused with everything that does not fit and left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from unit.gguf.gguf_bytes import write_gguf
from unit.gguf.small_model import (
    SHAPES,
    TIED,
    TYPES,
    VOCABULARY,
    WIDTH,
    Small,
    delivered,
    numbers,
    on_meta,
    payload,
    state,
    write,
)

from weight_readers import TargetMismatchError, UnknownDtypeError
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.methods.config import GGUFConfig
from weight_readers_gguf.model import How, PackedEmbedding, PackedLinear, Prepared, fill, prepare_module
from weight_readers_gguf.model import prepare as preparing
from weight_readers_gguf.types import BY_NAME


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.gguf")


def reasons(prepared: Prepared) -> dict[str, str | None]:
    return {each.source: each.reason for each in prepared.report.of(How.DEQUANTIZED)}


class TestLayersThatTheFileHasPacked:
    def test_become_packed_ones_without_memory_and_all_else_stays(self, file: Path) -> None:
        model = on_meta()
        prepare_module(model, file)
        kinds = [type(module) for module in model.children()]
        assert kinds == [PackedEmbedding, nn.RMSNorm, PackedLinear, PackedLinear, PackedLinear]
        shapes = {name: (tuple(p.shape), p.dtype, p.is_meta) for name, p in model.named_parameters()}
        assert shapes == {
            "embed.qweight": ((VOCABULARY, WIDTH // 32 * 34), torch.uint8, True),
            "norm.weight": ((WIDTH,), torch.float32, True),
            "up.bias": ((96,), torch.float32, True),
            "up.qweight": ((96, WIDTH // 32 * 18), torch.uint8, True),
            "down.qweight": ((WIDTH, 96 // 32 * 24), torch.uint8, True),
            "head.qweight": ((VOCABULARY, WIDTH // 32 * 34), torch.uint8, True),
        }

    def test_keep_their_identity_and_hooks(self, file: Path) -> None:
        model = on_meta()
        up, seen = model.up, []
        up.register_forward_hook(lambda *_: seen.append("called"))
        prepare_module(model, file)
        assert model.up is up
        assert len(up._forward_hooks) == 1

    def test_let_go_of_weights_they_had(self, file: Path) -> None:
        model = Small()
        prepare_module(model, file)
        assert model.up.qweight.is_meta
        assert not model.norm.weight.is_meta

    def test_stay_plain_where_the_file_has_plain_numbers(self, tmp_path: Path) -> None:
        model = on_meta()
        prepare_module(model, write(tmp_path / "f16.gguf", {**TYPES, "up.weight": "F16"}))
        assert type(model.up) is nn.Linear

    def test_can_be_the_model_itself(self, tmp_path: Path) -> None:
        file = write(tmp_path / "one.gguf", {"up.weight": "Q4_0"})
        with torch.device("meta"):
            model = nn.Linear(WIDTH, 96, bias=False)
        prepare_module(model, file, rename={"up.weight": "weight"})
        assert type(model) is PackedLinear

    def test_are_planned_from_headers_read_before(self, file: Path) -> None:
        checkpoint = read_checkpoint([str(file)])
        file.unlink()
        assert prepare_module(on_meta(), checkpoint).checkpoint is checkpoint

    def test_take_their_names_from_a_config(self, tmp_path: Path) -> None:
        types = {f"llama.{name}": type_name for name, type_name in TYPES.items()}
        file = write(tmp_path / "named.gguf", types, {f"llama.{name}": shape for name, shape in SHAPES.items()})
        config = GGUFConfig.from_file(file, rename=lambda name: name.removeprefix("llama."))
        prepared = prepare_module(on_meta(), config)
        assert prepared.entries["llama.up.weight"].placement.names == ("up.qweight",)
        with pytest.raises(TypeError, match="rename is that of the GGUFConfig"):
            prepare_module(on_meta(), config, rename={})

    def test_are_found_in_all_files_of_a_set_that_one_is_named_of(self, tmp_path: Path) -> None:
        parts = [dict(list(TYPES.items())[:3]), dict(list(TYPES.items())[3:])]
        for number, types in enumerate(parts):
            tensors = {n: (BY_NAME[t].id, SHAPES[n], payload(n, t, SHAPES[n]).tobytes()) for n, t in types.items()}
            split = {"split.no": number, "split.count": len(parts), "split.tensors.count": len(TYPES)}
            kinds = {"split.no": "UINT16", "split.count": "UINT16", "split.tensors.count": "INT32"}
            metadata = {key: (kinds[key], value) for key, value in split.items()}
            write_gguf(tmp_path / f"m-0000{number + 1}-of-00002.gguf", tensors, metadata)
        prepared = prepare_module(on_meta(), tmp_path / "m-00002-of-00002.gguf")
        assert (len(prepared.files), prepared.entries.keys()) == (2, TYPES.keys())


class TestTiedWeights:
    def test_are_one_packed_buffer_in_both_layers(self, tmp_path: Path) -> None:
        model = on_meta(tied=True)
        prepared = prepare_module(model, write(tmp_path / "tied.gguf", TIED))
        assert model.head.qweight is model.embed.qweight
        assert (PackedLinear, PackedEmbedding) == (type(model.head), type(model.embed))
        assert prepared.entries["embed.weight"].placement.names == ("embed.qweight", "head.qweight")

    def test_with_two_tensors_in_the_file_are_refused(self, file: Path) -> None:
        with pytest.raises(
            TargetMismatchError, match=r"go to one parameter: embed.weight and head.weight \(embed.weight\)"
        ):
            prepare_module(on_meta(tied=True), file)

    def test_are_plain_in_all_layers_where_one_cannot_have_them_packed(self, tmp_path: Path) -> None:
        model = on_meta(tied=True)
        model.table = nn.ParameterList([model.embed.weight])
        prepared = prepare_module(model, write(tmp_path / "tied.gguf", TIED))
        assert reasons(prepared) == {"embed.weight": "0 of ParameterList, which is neither nn.Linear nor nn.Embedding"}
        assert model.head.weight is model.embed.weight


class TestNames:
    @pytest.mark.parametrize(
        "rename",
        [
            {"token_embd.weight": "embed.weight"},
            {"token_embd": "embed"},
            lambda name: name.replace("token_embd", "embed"),
        ],
        ids=["names", "leading parts", "function"],
    )
    def test_are_mapped_from_the_file_to_the_model(self, tmp_path: Path, rename: Any) -> None:
        types = {"token_embd.weight": "Q8_0", **{n: t for n, t in TYPES.items() if n != "embed.weight"}}
        file = write(tmp_path / "named.gguf", types, {"token_embd.weight": (VOCABULARY, WIDTH)})
        prepared = prepare_module(on_meta(), file, rename=rename)
        assert prepared.entries["token_embd.weight"].placement.names == ("embed.qweight",)

    def test_that_map_to_none_are_left_out_and_listed(self, tmp_path: Path) -> None:
        file = write(tmp_path / "more.gguf", {**TYPES, "vision.weight": "Q8_0"}, {"vision.weight": (4, 32)})
        prepared = prepare_module(on_meta(), file, rename={"vision.weight": None})
        assert [(e.source, e.reason) for e in prepared.report.of(How.IGNORED)] == [
            ("vision.weight", "left out by rename")
        ]
        assert not prepared.wants("vision.weight")

    def test_that_ignore_matches_are_left_out_and_listed(self, tmp_path: Path) -> None:
        file = write(tmp_path / "more.gguf", {**TYPES, "vision.a.weight": "Q8_0"}, {"vision.a.weight": (4, 32)})
        prepared = prepare_module(on_meta(), file, ignore=["vision.*"])
        assert "ignore 'vision.*'" in str(prepared.report)

    def test_of_plain_tensors_that_the_model_lacks_are_listed_only(self, tmp_path: Path) -> None:
        file = write(tmp_path / "more.gguf", {**TYPES, "rope_freqs.weight": "F32"}, {"rope_freqs.weight": (4,)})
        ignored = prepare_module(on_meta(), file).report.of(How.IGNORED)
        assert [each.reason for each in ignored] == ["the model has no parameter 'rope_freqs.weight'"]


class TestTheAudit:
    def test_refuses_a_packed_tensor_without_a_place_and_guesses_the_one_that_was_meant(self, tmp_path: Path) -> None:
        types = {("upp.weight" if name == "up.weight" else name): t for name, t in TYPES.items()}
        file = write(tmp_path / "typo.gguf", types, {"upp.weight": (96, WIDTH)})
        with pytest.raises(TargetMismatchError, match=r"upp.weight \(as upp.weight; is up.weight meant\?\)") as caught:
            prepare_module(on_meta(), file)
        assert (caught.value.missing, caught.value.unexpected) == (("up.weight",), ("upp.weight",))

    def test_refuses_a_parameter_without_a_tensor(self, tmp_path: Path) -> None:
        file = write(tmp_path / "less.gguf", {name: t for name, t in TYPES.items() if name != "up.bias"})
        with pytest.raises(TargetMismatchError, match=r"parameters that no tensor goes to: up.bias"):
            prepare_module(on_meta(), file)

    def test_lets_parameters_be_missing_that_rules_name(self, tmp_path: Path) -> None:
        file = write(tmp_path / "less.gguf", {name: t for name, t in TYPES.items() if name != "up.bias"})
        assert prepare_module(on_meta(), file, missing_ok=["*.bias"]).missing == ("up.bias",)

    def test_names_every_shape_and_dtype_that_does_not_fit(self, tmp_path: Path) -> None:
        file = write(tmp_path / "w.gguf", {**TYPES, "norm.weight": "I32"}, {"up.weight": (95, WIDTH)})
        with pytest.raises(TargetMismatchError) as caught:
            prepare_module(on_meta(), file)
        assert caught.value.shapes == (("up.weight", "[95, 64]", "[96, 64]"),)
        assert caught.value.dtypes == (("norm.weight", "I32", "float32"),)

    def test_says_all_that_is_wrong_at_once(self, tmp_path: Path) -> None:
        types = {name: t for name, t in TYPES.items() if name != "up.bias"} | {"stray.weight": "Q4_0"}
        file = write(tmp_path / "w.gguf", types, {"stray.weight": (4, 32), "down.weight": (WIDTH, 64)})
        with pytest.raises(TargetMismatchError) as caught:
            prepare_module(on_meta(), file, islands=["nothing"])
        for words in (
            "islands 'nothing'",
            "no tensor goes to: up.bias",
            "place for: stray.weight",
            "down.weight (file",
        ):
            assert words in str(caught.value)

    def test_refuses_types_that_cannot_be_read_by_their_id(self, tmp_path: Path) -> None:
        file = write_gguf(tmp_path / "new.gguf", {"weight": (99, (96, WIDTH), bytes(64))})
        with torch.device("meta"):
            model = nn.Linear(WIDTH, 96, bias=False)
        with pytest.raises(UnknownDtypeError, match="99"):
            prepare_module(model, file)

    def test_refuses_a_module_that_has_no_shape_yet(self, tmp_path: Path) -> None:
        file = write(tmp_path / "one.gguf", {"weight": "Q4_0"}, {"weight": (96, WIDTH)})
        with pytest.raises(TargetMismatchError, match="parameters without a shape yet: weight"):
            prepare_module(nn.LazyLinear(96, bias=False), file)

    @pytest.mark.parametrize("rule", ["islands", "dequantize"])
    def test_refuses_rules_that_match_nothing(self, file: Path, rule: str) -> None:
        with pytest.raises(TargetMismatchError, match=rf"rules that match no parameter: {rule} 'final\.\*'"):
            prepare_module(on_meta(), file, **{rule: ["final.*"]})

    @pytest.mark.parametrize("rule", ["islands", "dequantize", "ignore", "missing_ok"])
    def test_refuses_one_pattern_given_in_the_place_of_several(self, file: Path, rule: str) -> None:
        with pytest.raises(TypeError, match=rf"{rule} is a sequence of patterns, not the string 'up\.\*'"):
            prepare_module(on_meta(), file, **{rule: "up.*"})


class TestTensorsThatCannotStayPacked:
    def test_are_dequantized_with_the_reason_of_the_file_or_of_the_model(self, tmp_path: Path) -> None:
        model = on_meta()
        with torch.device("meta"):
            model.embed = nn.Embedding(VOCABULARY, WIDTH, max_norm=1.0)
            model.scale = nn.Bilinear(2, 4, WIDTH)
        shapes = {"scale.weight": (WIDTH, 2, 4), "scale.bias": (WIDTH,)}
        types = {**TYPES, "norm.weight": "Q8_0", "scale.weight": "F32", "scale.bias": "Q4_0"}
        found = reasons(prepare_module(model, write(tmp_path / "mixed.gguf", types, shapes)))
        assert {"norm.weight", "embed.weight", "scale.bias"} == found.keys()
        assert found["embed.weight"] == "Embedding with max_norm, which rewrites its rows"
        assert all(found.values())

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn])
    def test_include_those_the_model_declares_in_a_dtype_that_packed_layers_do_not_compute_in(
        self, file: Path, dtype: torch.dtype
    ) -> None:
        model = on_meta()
        model.up.to(dtype)
        prepared = prepare_module(model, file)
        assert reasons(prepared) == {
            "up.weight": f"declared {dtype}, and packed layers compute in float32, float16 or bfloat16"
        }
        fill(prepared, delivered())
        assert torch.equal(model.up.weight.float(), numbers("up.weight", "Q4_0").to(dtype).float())

    def test_are_refused_where_strict_is_asked_for(self, tmp_path: Path) -> None:
        file = write(tmp_path / "norm.gguf", {**TYPES, "norm.weight": "Q8_0"})
        with pytest.raises(TargetMismatchError, match=r"cannot stay packed \(strict\): norm.weight"):
            prepare_module(on_meta(), file, strict=True)

    def test_include_those_that_rules_name(self, file: Path) -> None:
        model = on_meta(torch.bfloat16)
        found = reasons(prepare_module(model, file, dequantize=["up.*"], islands=["down.weight"]))
        assert found == {"up.weight": "asked for by dequantize 'up.*'", "down.weight": "a float32 island"}
        assert (torch.bfloat16, torch.float32) == (model.up.weight.dtype, model.down.weight.dtype)


class TestAModelThatIsRefused:
    def test_is_as_it_was(self, tmp_path: Path) -> None:
        model = on_meta()
        before = state(model)
        with pytest.raises(TargetMismatchError, match="The model was not changed"):
            prepare_module(model, write(tmp_path / "w.gguf", shapes={"head.weight": (9, WIDTH)}), islands=["norm.*"])
        assert before == state(model)

    def test_is_put_back_where_changing_it_fails_half_way(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = on_meta(torch.bfloat16)
        before, original, calls = state(model), preparing.pack, []

        def pack(*arguments: Any) -> None:
            original(*arguments)
            calls.append(arguments)
            if len(calls) == 3:
                raise MemoryError

        monkeypatch.setattr(preparing, "pack", pack)
        with pytest.raises(MemoryError):
            prepare_module(model, file, islands=["norm.*"])
        assert before == state(model)
        monkeypatch.undo()
        prepare_module(model, file)


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("rename", {"a": 5}),
        ("rename", {5: "a"}),
        ("rename", 5),
        ("islands", 5),
        ("islands", None),
        ("dequantize", [5]),
        ("ignore", b"x"),
        ("missing_ok", [None]),
        ("rows", 5),
        ("rows", ["up.weight"]),
        ("values", {"up.weight": 5}),
        ("reshape", {"up.weight": 5}),
        ("strict", 1),
    ],
)
def test_a_rule_of_another_kind_is_refused_by_its_name(tmp_path: Path, rule: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"^{rule} must "):
        prepare_module(on_meta(), write(tmp_path / "m.gguf"), **{rule: wrong})


def test_a_rename_that_gives_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"rename must give a name or None, and gives 5 for 'embed.weight'"):
        prepare_module(on_meta(), write(tmp_path / "m.gguf"), rename=lambda name: 5)
