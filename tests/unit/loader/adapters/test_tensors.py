# SPDX-License-Identifier: Apache-2.0
"""What each adapter makes of tensors, against torch operations done by hand on what safetensors saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from weight_readers import AdapterError, CheckpointError, TensorSlice
from weight_readers_loader import Checkpoint, open_checkpoint
from weight_readers_loader.adapters import Adapter, Concat, Dtype, GroupedQKV, Prefix, Rename, Split

HIDDEN = 6


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


SAVED = {
    "model.0.attn.qkv_proj.weight": numbers(8, HIDDEN, seed=1),
    "model.0.attn.qkv_proj.bias": numbers(8, seed=2),
    "model.0.norm.weight": numbers(HIDDEN, seed=3),
    "model.0.q.weight": numbers(4, HIDDEN, seed=4),
    "model.0.k.weight": numbers(2, HIDDEN, seed=5),
    "steps": torch.arange(3),
}


@pytest.fixture
def adapted(tmp_path: Path) -> Callable[..., Checkpoint]:
    save_file(SAVED, tmp_path / "model.safetensors")
    return lambda *adapters, **options: open_checkpoint(tmp_path, adapters=adapters, **options)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found, expected)


# --- names ------------------------------------------------------------------------------------------------------


def test_a_prefix_is_added_and_another_taken_away(adapted: Callable[..., Checkpoint]) -> None:
    checkpoint = adapted(Prefix("transformer.", strip="model."))
    found = dict(checkpoint.iter_weights())
    assert set(found) == {"transformer." + name.removeprefix("model.") for name in SAVED}
    assert all(same(found["transformer." + name.removeprefix("model.")], SAVED[name]) for name in SAVED)
    assert set(checkpoint.adapted) == set(found)
    assert set(checkpoint.tensors) == set(SAVED)


def test_names_are_replaced_by_name_first_and_then_by_the_first_pattern(adapted: Callable[..., Checkpoint]) -> None:
    patterns = [(r"^model\.(\d+)\.", r"layers.\1."), (r"\.weight$", ".never")]
    checkpoint = adapted(Rename({"steps": "model.steps"}, patterns=patterns))
    assert set(checkpoint.state_dict()) == {
        "layers.0.attn.qkv_proj.weight",
        "layers.0.attn.qkv_proj.bias",
        "layers.0.norm.weight",
        "layers.0.q.weight",
        "layers.0.k.weight",
        "model.steps",
    }


def test_a_filter_and_a_stored_tensor_go_by_the_names_of_the_files(adapted: Callable[..., Checkpoint]) -> None:
    checkpoint = adapted(Prefix("a."))
    assert list(checkpoint.state_dict(key_filter=lambda name: name == "steps")) == ["a.steps"]
    assert same(checkpoint.get_tensor("steps"), SAVED["steps"])
    assert same(checkpoint.get_slice("model.0.norm.weight")[1:3], SAVED["model.0.norm.weight"][1:3])
    assert dict(checkpoint.iter_stored()).keys() == SAVED.keys()


def test_a_part_of_a_renamed_tensor_is_read_and_of_a_changed_one_refused(adapted: Callable[..., Checkpoint]) -> None:
    name, part = "model.0.norm.weight", TensorSlice(dim=0, start=1, stop=3)
    found = adapted(Prefix("a.")).state_dict(slices={name: part})
    assert same(found["a." + name], SAVED[name][1:3])
    with pytest.raises(ValueError, match=f"an adapter changes '{name}', so that no part of it can be read alone"):
        adapted(Dtype("float16")).state_dict(slices={name: part})


# --- dtypes -----------------------------------------------------------------------------------------------------


def test_floating_tensors_are_converted_and_islands_keep_theirs(adapted: Callable[..., Checkpoint]) -> None:
    checkpoint = adapted(Dtype("bf16", keep=["*.norm.*"]))
    found = checkpoint.state_dict()
    for name, tensor in SAVED.items():
        kept = name in ("model.0.norm.weight", "steps")
        assert same(found[name], tensor if kept else tensor.to(torch.bfloat16)), name
    assert checkpoint.report is not None
    assert checkpoint.report.cast == {"float32 -> bfloat16": 4}


def test_two_rules_make_islands_of_another_dtype(adapted: Callable[..., Checkpoint]) -> None:
    found = adapted(Dtype("float16"), Dtype("float64", only=["*.norm.*"])).state_dict()
    name = "model.0.norm.weight"
    assert same(found[name], SAVED[name].half().double())
    assert found["model.0.q.weight"].dtype is torch.float16


def test_eight_bit_floats_mean_nothing_without_their_scales_and_stay(tmp_path: Path) -> None:
    saved = {"w": numbers(4).to(torch.float8_e4m3fn), "s": numbers(1)}
    save_file(saved, tmp_path / "model.safetensors")
    found = open_checkpoint(tmp_path, adapters=[Dtype("bfloat16")]).state_dict()
    assert (found["w"].dtype, found["s"].dtype) == (torch.float8_e4m3fn, torch.bfloat16)


# --- rows -------------------------------------------------------------------------------------------------------


def test_grouped_rows_become_queries_keys_and_values(tmp_path: Path) -> None:
    order = ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"]  # two groups, heads of three rows
    rows = {head: numbers(3, HIDDEN, seed=number) for number, head in enumerate(order)}
    biases = {head: numbers(3, seed=100 + number) for number, head in enumerate(order)}
    grouped = {
        "0.qkv_proj.weight": torch.cat([rows[head] for head in order]),
        "0.qkv_proj.bias": torch.cat([biases[head] for head in order]),
    }
    save_file(grouped, tmp_path / "model.safetensors")
    found = open_checkpoint(tmp_path, adapters=[GroupedQKV("qkv_proj", heads=4, kv_heads=2, head_dim=3)]).state_dict()
    contiguous = ["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"]
    assert same(found["0.qkv_proj.weight"], torch.cat([rows[head] for head in contiguous]))
    assert same(found["0.qkv_proj.bias"], torch.cat([biases[head] for head in contiguous]))


def test_a_fused_projection_is_split_by_rows(adapted: Callable[..., Checkpoint]) -> None:
    found = adapted(Split("qkv_proj", {"q_proj": 4, "k_proj": 2, "v_proj": 2})).state_dict()
    for kind in ("weight", "bias"):
        fused = SAVED[f"model.0.attn.qkv_proj.{kind}"]
        assert same(found[f"model.0.attn.q_proj.{kind}"], fused[:4])
        assert same(found[f"model.0.attn.k_proj.{kind}"], fused[4:6])
        assert same(found[f"model.0.attn.v_proj.{kind}"], fused[6:])
    assert "model.0.attn.qkv_proj.weight" not in found


def test_a_list_of_parts_splits_evenly(adapted: Callable[..., Checkpoint]) -> None:
    found = adapted(Split("qkv_proj", ["gate", "up"], only=["*.weight"])).state_dict()
    fused = SAVED["model.0.attn.qkv_proj.weight"]
    assert same(found["model.0.attn.gate.weight"], fused[:4])
    assert same(found["model.0.attn.up.weight"], fused[4:])
    assert "model.0.attn.qkv_proj.bias" in found


def test_projections_are_joined_in_the_order_given_and_come_when_the_last_has_come(
    adapted: Callable[..., Checkpoint],
) -> None:
    weights = list(adapted(Concat(["q", "k"], into="qk")).iter_weights())
    found = dict(weights)
    assert same(found["model.0.qk.weight"], torch.cat([SAVED["model.0.q.weight"], SAVED["model.0.k.weight"]]))
    assert not {"model.0.q.weight", "model.0.k.weight"} & set(found)
    found = adapted(Concat(["k", "q"], into="kq")).state_dict()
    assert same(found["model.0.kq.weight"], torch.cat([SAVED["model.0.k.weight"], SAVED["model.0.q.weight"]]))


def test_adapters_work_one_after_the_other(adapted: Callable[..., Checkpoint]) -> None:
    chain = [
        GroupedQKV("qkv_proj", heads=2, kv_heads=1, head_dim=2),
        Split("qkv_proj", {"q": 4, "k": 2, "v": 2}),
        Concat(["k", "v"], into="kv", only=["*.attn.*"]),
        Dtype("float16", keep=["*.bias"]),
        Prefix("m."),
    ]
    found = adapted(*chain).state_dict()
    fused = SAVED["model.0.attn.qkv_proj.weight"]  # of one group: it is contiguous already
    assert same(found["m.model.0.attn.q.weight"], fused[:4].half())
    assert same(found["m.model.0.attn.kv.weight"], fused[4:].half())
    assert same(found["m.model.0.attn.kv.bias"], SAVED["model.0.attn.qkv_proj.bias"][4:])


# --- what does not fit, before anything is read -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        (Prefix("a.", strip="modle."), "no name begins with the prefix to strip, 'modle.'"),
        (Rename({"stepz": "s"}), "Rename names 'stepz', and no tensor has such a name"),
        (Rename(patterns=[("^layers", "x")]), "the pattern '^layers', which no name has"),
        (Rename(patterns=[(r"\.(q|k)\.weight", ".w")]), "gives model.0.k.weight and model.0.q.weight one name"),
        (Dtype("bf16", keep=["*.nrom.*"]), "Dtype keep names '*.nrom.*'"),
        (GroupedQKV("qkv", heads=1, head_dim=1), "GroupedQKV is for 'qkv', and no name has that part"),
        (GroupedQKV("qkv_proj", heads=4, head_dim=4), "a fused projection has other rows"),
        (Split("qkv_proj", {"q": 4, "k": 2}), "a fused projection has other rows"),
        (Split("qkv_proj", ["a", "b", "c"]), "the rows cannot be split evenly"),
        (Concat(["q", "v"], into="qv"), "a tensor that is joined with it is missing"),
        (Concat(["q", "norm"], into="x"), "it cannot be joined"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_checkpoint_is_opened(
    adapted: Callable[..., Checkpoint], adapter: Adapter, words: str
) -> None:
    with pytest.raises(AdapterError) as caught:
        adapted(adapter)
    assert words in str(caught.value)
    assert "model.safetensors" in str(caught.value)


def test_a_filter_that_leaves_out_a_part_of_what_is_joined_is_refused(adapted: Callable[..., Checkpoint]) -> None:
    checkpoint = adapted(Concat(["q", "k"], into="qk"))
    with pytest.raises(AdapterError, match=r"joined with it is missing: .*'model\.0\.q\.weight'"):
        checkpoint.iter_weights(key_filter=lambda name: ".k." not in name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dtype("int8"), "dtype must be one of float64, float32"),  # type: ignore[arg-type]
        (lambda: Dtype("bf16", keep="*.norm.*"), "keep must be a list of texts"),
        (lambda: Prefix(), "needs a prefix"),
        (lambda: Rename(), "needs names or patterns"),
        (lambda: Rename(patterns=[("(", "")]), "is no regular expression"),
        (lambda: Rename(patterns=[("a", r"\9")]), "is no regular expression"),
        (lambda: Rename(patterns=["ab"]), "a pair of an expression and its replacement"),
        (lambda: GroupedQKV("qkv", heads=3, kv_heads=2, head_dim=1), "heads must be a multiple of kv_heads"),
        (lambda: GroupedQKV("qkv", heads=0, head_dim=1), "heads must be a whole number of at least 1, not 0"),
        (lambda: Split("qkv", ["q"]), "two parts or more"),
        (lambda: Split("qkv", {"q": 0, "k": 1}), "at least 1, not 0"),
        (lambda: Concat(["q", "q"], into="x"), "two parts or more, each once"),
        (lambda: Concat(["q", "k"], into=""), "into must be a part of names"),
    ],
)
def test_an_adapter_says_what_is_wrong_with_its_options(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_aliases_of_the_files_and_adapters_exclude_each_other(adapted: Callable[..., Checkpoint]) -> None:
    with pytest.raises(ValueError, match="aliases are names of the files"):
        adapted(Prefix("a.")).state_dict(resolve_aliases=True)


def test_closing_an_adapted_stream_ends_the_reader(adapted: Callable[..., Checkpoint]) -> None:
    stream = adapted(Prefix("a."), Dtype("float16")).iter_weights()
    next(stream)
    stream.close()
    assert list(stream) == []


# --- adapters of others ---------------------------------------------------------------------------------------------


class Wrong(Adapter):
    """Makes what ``make`` makes, whatever the plan says."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        self.make = make

    def plan(self, tensors: Any) -> Any:
        from weight_readers_loader.adapters import Made

        return [Made(meta=meta, sources=(name,), make=self.make) for name, meta in tensors.items()]


class Raising(Adapter):
    def plan(self, tensors: Any) -> Any:
        raise KeyError("scale")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t: t.double(), "adapter Wrong made another tensor than it planned"),
        (lambda t: t.reshape(-1)[:1], "adapter Wrong made another tensor than it planned"),
        (lambda t: None, "adapter Wrong made NoneType of it, not a tensor"),
        (lambda t: {}["scale"], "adapter Wrong raised KeyError: 'scale'"),
    ],
)
def test_an_adapter_that_does_otherwise_than_planned_is_named(
    adapted: Callable[..., Checkpoint], make: Callable[[torch.Tensor], Any], words: str
) -> None:
    with pytest.raises(AdapterError) as caught:
        adapted(Wrong(make)).state_dict()
    assert words in str(caught.value)


def test_an_adapter_that_cannot_plan_is_named_before_any_read(adapted: Callable[..., Checkpoint]) -> None:
    with pytest.raises(AdapterError, match="adapter Raising raised KeyError: 'scale'"):
        adapted(Raising())
    with pytest.raises(TypeError, match="adapters must be a list of Adapter, not of function"):
        adapted(lambda weights: weights)


def test_a_failure_under_way_says_which_targets_were_written(adapted: Callable[..., Checkpoint]) -> None:
    class OneWrong(Wrong):
        def plan(self, tensors: Any) -> Any:
            made = super().plan(tensors)
            return [
                each if each.meta.name == "steps" else type(each)(meta=each.meta, sources=each.sources) for each in made
            ]

    target = {name: torch.zeros_like(tensor) for name, tensor in SAVED.items()}
    with pytest.raises(CheckpointError) as caught:
        adapted(OneWrong(lambda t: t.double())).load_into(target)
    written = set(caught.value.written)
    assert written == set(SAVED) - {"steps"}
    assert all(same(target[name], SAVED[name]) for name in written)
