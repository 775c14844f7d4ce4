# SPDX-License-Identifier: Apache-2.0
"""Families: names taken apart, and grouped by their pattern."""

from __future__ import annotations

import pytest

from weight_readers_loader.resolve.families import Family, survey
from weight_readers_loader.resolve.file_names import parse_index_name, parse_weight_name


@pytest.mark.parametrize(
    ("name", "kind", "stem", "variant", "number", "total"),
    [
        ("model.safetensors", "single", "model", None, None, None),
        ("model.fp16.safetensors", "single", "model", "fp16", None, None),
        ("diffusion_pytorch_model.non_ema.safetensors", "single", "diffusion_pytorch_model", "non_ema", None, None),
        ("qwen2.5.safetensors", "single", "qwen2.5", None, None, None),
        ("fp16.safetensors", "single", "fp16", None, None, None),
        ("model-1.safetensors", "single", "model-1", None, None, None),
        ("model-00001-of-00002.safetensors", "shards", "model", None, 1, 2),
        ("model-00001-of-000163.safetensors", "shards", "model", None, 1, 163),
        ("model-00000-of-00004.safetensors", "shards", "model", None, 0, 4),
        ("model.fp16-00001-of-00002.safetensors", "shards", "model", "fp16", 1, 2),
        ("model-00001-of-00002.fp16.safetensors", "shards", "model", "fp16", 1, 2),
        ("model-00001-of-00002.part.safetensors", "shards", "model.part", None, 1, 2),
        ("qwen2.5-00001-of-00002.safetensors", "shards", "qwen2.5", None, 1, 2),
        ("model-00001-of-00002 (1).safetensors", "single", "model-00001-of-00002 (1)", None, None, None),
        ("a-1-of-2-00001-of-00003.gguf", "shards", "a-1-of-2", None, 1, 3),
        ("model-00001-of-99999999999.safetensors", "single", "model-00001-of-99999999999", None, None, None),
        ("llama.fp16.gguf", "single", "llama.fp16", None, None, None),
    ],
)
def test_a_weight_name_is_taken_apart(
    name: str, kind: str, stem: str, variant: str | None, number: int | None, total: int | None
) -> None:
    parsed = parse_weight_name(name)
    assert parsed is not None
    assert (kind, stem, variant) == (parsed.kind, parsed.stem, parsed.variant)
    assert (number, total) == (parsed.number, parsed.total)


def test_a_rank_file_has_rank_and_part() -> None:
    parsed = parse_weight_name("model-rank-3-part-12.safetensors")
    assert parsed is not None
    assert (parsed.kind, parsed.stem, parsed.rank, parsed.number) == ("ranks", "model", 3, 12)


def test_an_unknown_token_is_a_variant_only_if_asked_for() -> None:
    for asked, expected in ((None, ("qwen2.mine", None)), ("mine", ("qwen2", "mine"))):
        parsed = parse_weight_name("qwen2.mine.safetensors", variant=asked)
        assert parsed is not None
        assert expected == (parsed.stem, parsed.variant)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "README", "model.safetensors.part"])
def test_other_files_are_no_weights(name: str) -> None:
    assert parse_weight_name(name) is None


@pytest.mark.parametrize(
    ("name", "form", "stem", "variant"),
    [
        ("model.safetensors.index.json", "safetensors", "model", None),
        ("model.safetensors.index.fp16.json", "safetensors", "model", "fp16"),
        ("model.fp16.safetensors.index.json", "safetensors", "model", "fp16"),
        ("diffusion_pytorch_model.safetensors.index.json", "safetensors", "diffusion_pytorch_model", None),
        ("pytorch_model.bin.index.json", "pt", "pytorch_model", None),
    ],
)
def test_an_index_name_is_taken_apart(name: str, form: str, stem: str, variant: str | None) -> None:
    parsed = parse_index_name(name)
    assert parsed is not None
    assert (form, stem, variant) == (parsed.format, parsed.stem, parsed.variant)


@pytest.mark.parametrize("name", ["model.index.json", "model.onnx.index.json", "config.json", "model.safetensors"])
def test_other_files_are_no_index(name: str) -> None:
    assert parse_index_name(name) is None


def only(*names: str, variant: str | None = None) -> Family:
    (family,) = survey(names, variant=variant).families
    return family


def test_shards_of_one_numbering_are_one_family_in_natural_order() -> None:
    family = only("m-10-of-11.safetensors", "m-9-of-11.safetensors", "m-1-of-11.safetensors")
    assert family.names == ("m-1-of-11.safetensors", "m-9-of-11.safetensors", "m-10-of-11.safetensors")
    assert family.title == "m-1-of-11.safetensors (3 of 11 shards)"


@pytest.mark.parametrize(
    "other",
    [
        "m-00001-of-00003.safetensors",
        "n-00001-of-00002.safetensors",
        "m-00001-of-00002.fp16.safetensors",
        "m-00001-of-00002.bin",
        "m.safetensors",
    ],
)
def test_another_total_stem_variant_format_or_pattern_is_another_family(other: str) -> None:
    assert len(survey(["m-00001-of-00002.safetensors", other]).families) == 2


def test_a_numbering_promises_the_names_that_are_missing() -> None:
    assert only("m-00002-of-00003.fp16.safetensors").shards().names() == (
        "m-00001-of-00003.fp16.safetensors",
        "m-00002-of-00003.fp16.safetensors",
        "m-00003-of-00003.fp16.safetensors",
    )


def test_a_numbering_that_has_a_zero_starts_there() -> None:
    assert only("m-00000-of-00002.safetensors").shards().names()[-1] == "m-00001-of-00002.safetensors"


def test_the_parts_of_a_rank_go_up_to_the_highest_that_is_there() -> None:
    family = only("m-rank-0-part-0.safetensors", "m-rank-1-part-2.safetensors", "m-rank-1-part-0.safetensors")
    assert family.parts_of(0).names() == ("m-rank-0-part-0.safetensors",)
    assert family.parts_of(1).names() == tuple(f"m-rank-1-part-{n}.safetensors" for n in range(3))


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.pt",
        "optimizer.bin",
        "optimizer_1.bin",
        "optimizer-00001-of-00002.safetensors",
        "scheduler.pt",
        "scaler.pt",
        "training_args.bin",
        "trainer_state.pt",
        "rng_state.pth",
        "rng_state_0.pth",
        "random_states_0.pt",
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "openvino_model.bin",
        "._model.safetensors",
    ],
)
def test_what_a_training_run_leaves_behind_is_left_out_with_a_reason(name: str) -> None:
    seen = survey([name, "model.safetensors"])
    assert [(name, True)] == [(left, bool(reason)) for left, reason in seen.left_out]
    assert len(seen.families) == 1


def test_a_hidden_index_is_no_index() -> None:
    assert survey(["._model.safetensors.index.json"]).indexes == ()


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("model.safetensors", 0),
        ("consolidated.safetensors", 1),
        ("consolidated.00.pth", 1),
        ("consolidated-00001-of-00002.safetensors", 1),
        ("consolidatedness.safetensors", 0),
        ("adapter_model.safetensors", 2),
        ("adapters.safetensors", 2),
        ("pytorch_lora_weights.safetensors", 2),
    ],
)
def test_a_second_copy_and_an_adapter_stand_back(name: str, tier: int) -> None:
    family = only(name)
    assert tier == family.tier
    assert (family.standing is not None) == bool(tier)
