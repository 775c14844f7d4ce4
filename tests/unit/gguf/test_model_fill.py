# SPDX-License-Identifier: Apache-2.0
"""Weights reach the prepared model with the bytes or the numbers they should, and none is left over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from unit.gguf.small_model import SHAPES, TIED, TYPES, Small, delivered, numbers, on_meta, payload, state, write

from weight_readers import FileChangedError, TargetMismatchError
from weight_readers_gguf import GGUFReader
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.model import QKVRows, fill, load_packed, prepare_module

IDS = torch.tensor([[0, 3, 7], [1, 1, 2]])


class Reader:
    """A reader whose tensors come from the test; it remembers what it was asked for."""

    def __init__(self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]) -> None:
        self._tensors = tensors
        self.wanted: list[str] = []

    def iter_weights(self, files: Any, *, key_filter: Callable[[str], bool]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors():
            if key_filter(name):
                self.wanted.append(name)
                yield name, tensor


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.gguf")


def dense(dtype: torch.dtype = torch.float32, *, tied: bool = False) -> Small:
    """The model that holds what ggml says the file stands for."""
    types = {**TIED, "head.weight": TYPES["embed.weight"]} if tied else TYPES
    model = Small().to(dtype)
    values = {name: numbers("embed.weight" if tied and name == "head.weight" else name, t) for name, t in types.items()}
    model.load_state_dict({name: value.to(dtype) for name, value in values.items()})
    return model


class TestAFilledModel:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("model", [on_meta, lambda dtype: Small().to(dtype)], ids=["meta", "with memory"])
    def test_computes_what_the_dequantized_one_does(
        self, file: Path, model: Callable[[torch.dtype], Small], dtype: torch.dtype
    ) -> None:
        made = model(dtype)
        fill(prepare_module(made, file), delivered())
        torch.testing.assert_close(made(IDS), dense(dtype)(IDS))

    def test_with_tied_weights_holds_them_once(self, tmp_path: Path) -> None:
        model = on_meta(tied=True)
        report = fill(prepare_module(model, write(tmp_path / "tied.gguf", TIED)), delivered(TIED))
        assert model.head.qweight is model.embed.qweight
        torch.testing.assert_close(model(IDS), dense(tied=True)(IDS))
        assert report.packed_nbytes == sum(payload(n, t, SHAPES[n]).nbytes for n, t in TIED.items() if t[0] == "Q")

    def test_holds_packed_bytes_as_they_were_delivered(self, file: Path) -> None:
        model, tensors = on_meta(), dict(delivered())
        fill(prepare_module(model, file), tensors.items())
        assert model.up.qweight.data_ptr() == tensors["up.weight"].data_ptr()

    def test_has_memory_of_its_own_where_that_is_asked_for(self, file: Path) -> None:
        model, tensors = on_meta(), dict(delivered())
        fill(prepare_module(model, file), tensors.items(), copy=True)
        mine = {parameter.data_ptr() for parameter in model.parameters()}
        assert mine.isdisjoint(tensor.data_ptr() for tensor in tensors.values())
        torch.testing.assert_close(model(IDS), dense()(IDS))

    def test_is_written_in_place_where_it_has_memory(self, file: Path) -> None:
        model = Small()
        before = model.norm.weight.data_ptr()
        fill(prepare_module(model, file), delivered())
        assert model.norm.weight.data_ptr() == before
        assert torch.equal(model.norm.weight, numbers("norm.weight", "F32"))


class TestNumbers:
    def test_of_a_quantized_norm_are_rounded_once_to_what_the_model_declares(self, tmp_path: Path) -> None:
        types = {**TYPES, "norm.weight": "Q8_0"}
        model = on_meta(torch.bfloat16)
        fill(prepare_module(model, write(tmp_path / "n.gguf", types)), delivered(types))
        assert torch.equal(model.norm.weight, numbers("norm.weight", "Q8_0").to(torch.bfloat16))

    def test_of_an_island_are_float32_with_no_step_between(self, file: Path) -> None:
        model = on_meta(torch.bfloat16)
        fill(prepare_module(model, file, islands=["norm.*", "up.*"]), delivered())
        for name, type_name in (("norm.weight", "F32"), ("up.weight", "Q4_0"), ("up.bias", "F32")):
            found = model.get_parameter(name)
            assert found.dtype is torch.float32
            assert torch.equal(found, numbers(name, type_name)), name

    def test_of_a_layer_the_model_declares_float32_are_so_too(self, file: Path) -> None:
        model = on_meta(torch.bfloat16)
        model.up.float()
        fill(prepare_module(model, file, dequantize=["up.weight"]), delivered())
        assert torch.equal(model.up.weight, numbers("up.weight", "Q4_0"))

    def test_are_changed_before_the_rounding(self, file: Path) -> None:
        model = on_meta(torch.bfloat16)
        fill(prepare_module(model, file, values={"norm.weight": lambda weight: weight - 1}), delivered())
        assert torch.equal(model.norm.weight, (numbers("norm.weight", "F32") - 1).to(torch.bfloat16))

    def test_of_packed_weights_are_changed_after_they_are_dequantized(self, file: Path) -> None:
        model = on_meta()
        fill(prepare_module(model, file, values={"up.weight": lambda weight: weight * 3}), delivered())
        assert torch.equal(model.up.weight, numbers("up.weight", "Q4_0") * 3)

    def test_in_a_folded_shape_are_unfolded_for_that_name_and_shape(self, tmp_path: Path) -> None:
        types, shapes = {"weight": "F32"}, {"weight": (6, 2, 4, 4)}
        file = write(tmp_path / "conv.gguf", types, shapes)
        with torch.device("meta"):
            model = torch.nn.Conv3d(3, 2, (2, 4, 4), bias=False)
        fill(prepare_module(model, file, reshape={"weight": (6, 2, 4, 4)}), delivered(types, shapes))
        assert torch.equal(model.weight, numbers("weight", "F32", (6, 2, 4, 4)).reshape(2, 3, 2, 4, 4))

    @pytest.mark.parametrize("reshape", [{}, {"weight": (2, 6, 4, 4)}], ids=["no rule", "a rule for another shape"])
    def test_in_another_shape_of_as_many_elements_are_refused(self, tmp_path: Path, reshape: Any) -> None:
        file = write(tmp_path / "conv.gguf", {"weight": "F32"}, {"weight": (6, 2, 4, 4)})
        with torch.device("meta"):
            model = torch.nn.Conv3d(3, 2, (2, 4, 4), bias=False)
        with pytest.raises(TargetMismatchError, match=r"weight \(file \[6, 2, 4, 4\], model"):
            prepare_module(model, file, reshape=reshape)


def test_rows_are_reordered_as_packed_bytes_and_stay_packed(file: Path) -> None:
    model = on_meta()
    rows = QKVRows(layout="grouped", heads=4, head_dim=8)  # type: ignore[arg-type]
    fill(prepare_module(model, file, rows={"up.*": rows}), delivered())
    assert torch.equal(model.up.weight.dequantize(), rows(numbers("up.weight", "Q4_0")))
    assert torch.equal(model.up.bias, rows(numbers("up.bias", "F32")))
    x = torch.randn(5, 64)
    expected = functional.linear(x, rows(numbers("up.weight", "Q4_0")), rows(numbers("up.bias", "F32")))
    torch.testing.assert_close(model.up(x), expected)


@pytest.mark.parametrize(
    ("rule", "change", "given"),
    [
        ("rows", lambda bytes_: bytes_[:3], r"torch.uint8 \[3, 36\]"),
        ("rows", lambda bytes_: bytes_.float(), r"torch.float32 \[96, 36\]"),
        ("rows", lambda bytes_: None, "None"),
        ("values", lambda weight: weight[:3], r"torch.float32 \[3, 64\]"),
        ("values", lambda weight: weight.half(), r"torch.float16 \[96, 64\]"),
    ],
)
def test_a_rule_that_gives_something_else_is_refused_by_its_name(
    file: Path, rule: str, change: Callable[[torch.Tensor], Any], given: str
) -> None:
    model = on_meta()
    before = state(model)
    with pytest.raises(TargetMismatchError, match=rf"rule {rule} for 'up.weight' is given .* not {given}"):
        load_packed(model, file, **{rule: {"up.weight": change}})  # type: ignore[arg-type]
    assert before == state(model)


class TestAReaderThatIsNotTheOnePlannedFor:
    def test_with_a_tensor_the_headers_do_not_have_is_refused(self, file: Path) -> None:
        with pytest.raises(TargetMismatchError, match="delivers 'stray'"):
            fill(prepare_module(on_meta(), file), [("stray", torch.zeros(1))])

    def test_without_a_tensor_the_model_waits_for_is_refused(self, file: Path) -> None:
        less = [(name, tensor) for name, tensor in delivered() if name != "down.weight"]
        with pytest.raises(TargetMismatchError, match=r"without 1 tensors that the model waits for: down.weight"):
            fill(prepare_module(on_meta(), file), less)

    @pytest.mark.parametrize(
        "weights", [None, 5, "zz", [5], [("up.weight",)], [("up.weight", 5)], [(5, torch.ones(1))]]
    )
    def test_that_yields_no_pairs_is_refused(self, file: Path, weights: Any) -> None:
        with pytest.raises(TypeError, match="weights must be pairs of a checkpoint name and a tensor"):
            fill(prepare_module(on_meta(), file), weights)

    def test_with_numbers_where_bytes_are_planned_is_refused(self, file: Path) -> None:
        with pytest.raises(TargetMismatchError, match=r"'up.weight' as float32 \[96, 64\].*says uint8 \[96, 36\]"):
            fill(prepare_module(on_meta(), file), [("up.weight", numbers("up.weight", "Q4_0"))])


class TestTheReport:
    def test_says_what_became_of_every_tensor(self, tmp_path: Path) -> None:
        types = {**TYPES, "norm.weight": "Q8_0", "extra": "F32"}
        shapes = {"extra": (3,)}
        file = write(tmp_path / "r.gguf", types, shapes)
        report = fill(prepare_module(on_meta(), file), delivered(types, shapes))
        assert str(report).splitlines() == [
            f"7 tensors of {file}: {_sum(types, shapes)} in the file, 9.6 KiB in the model",
            "  packed      4 tensors, 8.9 KiB (2 Q8_0, 1 Q4_0, 1 Q5_1)",
            "  plain       1 tensor, 384 B (1 F32)",
            "  dequantized 1 tensor, 256 B (1 Q8_0)",
            f"    norm.weight (Q8_0 to float32): {report.placements[1].reason}",
            "  ignored     1 tensor, 0 B (1 F32)",
            "    extra (F32): the model has no parameter 'extra'",
        ]
        assert report.to_json()["placements"][0]["names"] == ["embed.qweight"]

    def test_names_buffers_that_the_model_must_compute(self, file: Path) -> None:
        model = on_meta()
        model.register_buffer("inv_freq", torch.empty(4, device="meta"), persistent=False)
        assert fill(prepare_module(model, file), delivered()).unset == ("inv_freq",)


def _sum(types: dict[str, str], shapes: dict[str, tuple[int, ...]]) -> str:
    every = {**SHAPES, **shapes}
    return f"{sum(payload(n, t, every[n]).nbytes for n, t in types.items()) / 1024:.1f} KiB"


class TestLoadingInOneCall:
    def test_reads_what_the_model_has_a_place_for(self, tmp_path: Path) -> None:
        types, shapes = {**TYPES, "vision.weight": "Q8_0"}, {"vision.weight": (4, 32)}
        file = write(tmp_path / "v.gguf", types, shapes)
        reader, model = Reader(lambda: delivered(types, shapes)), on_meta()
        load_packed(model, file, reader=reader, ignore=["vision.*"])  # type: ignore[arg-type]
        assert reader.wanted == list(TYPES)
        torch.testing.assert_close(model(IDS), dense()(IDS))

    def test_that_fails_leaves_a_model_without_memory_as_it_was(self, file: Path) -> None:
        def broken() -> Iterator[tuple[str, torch.Tensor]]:
            yield next(delivered())
            raise OSError("the disk went away")

        model = on_meta(torch.bfloat16)
        before = state(model)
        with pytest.raises(OSError, match="went away"):
            load_packed(model, file, reader=Reader(broken), islands=["up.*"])  # type: ignore[arg-type]
        assert before == state(model)

    def test_that_fails_leaves_what_had_no_memory_as_it_was(self, file: Path) -> None:
        def broken() -> Iterator[tuple[str, torch.Tensor]]:
            yield next(delivered())
            raise OSError("the disk went away")

        model = on_meta()
        model.norm.weight = torch.nn.Parameter(torch.ones(64))
        before = state(model)
        with pytest.raises(OSError, match="went away"):
            load_packed(model, file, reader=Reader(broken))  # type: ignore[arg-type]
        assert before == state(model)

    def test_copies_what_a_reader_maps_read_only(self, file: Path) -> None:
        model = on_meta()
        load_packed(model, file, reader=GGUFReader(readonly=True))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert not model.up.qweight.any()

    @pytest.mark.parametrize(
        "wrong",
        [{"device": []}, {"device": 5}, {"copy": "x"}, {"reader": 5}, {"strict": "zz"}, {"rename": "zz"}],
        ids=str,
    )
    def test_names_an_argument_of_another_kind_and_changes_nothing(self, file: Path, wrong: dict[str, Any]) -> None:
        model = on_meta()
        before = state(model)
        [(argument, value)] = wrong.items()
        with pytest.raises(TypeError, match=rf"^{argument} must be .* not {re.escape(repr(value))}"):
            load_packed(model, file, **wrong)
        assert before == state(model)

    @pytest.mark.parametrize(
        ("device", "said"),
        [
            ("zz", "device='zz' is no device that can be used here; there is 'cpu'"),
            ("meta", "device 'meta' has no memory for weights"),
            ("cuda:99", "device='cuda:99' is no device that can be used here; there is 'cpu'"),
        ],
    )
    def test_on_a_device_that_can_hold_no_weights_here_is_refused_before_anything_is_read(
        self, file: Path, device: str, said: str
    ) -> None:
        model, reader = on_meta(), Reader(delivered)
        before = state(model)
        with pytest.raises(ValueError, match=said):
            load_packed(model, file, reader=reader, device=device)  # type: ignore[arg-type]
        assert (before, reader.wanted) == (state(model), [])

    @pytest.mark.parametrize("when", ["before it is read", "while it is read"])
    def test_of_a_file_that_is_another_by_now_is_refused_though_its_sizes_agree(self, file: Path, when: str) -> None:
        checkpoint, model = read_checkpoint([file]), on_meta()
        before = state(model)

        def replaced() -> Iterator[tuple[str, torch.Tensor]]:
            yield from delivered()
            write(file, {**TYPES, "up.weight": "IQ4_NL"})

        reader = None if when == "before it is read" else Reader(replaced)
        if reader is None:
            write(file, {**TYPES, "up.weight": "IQ4_NL"})
        with pytest.raises(FileChangedError, match=str(file)):
            load_packed(model, checkpoint, reader=reader)  # type: ignore[arg-type]
        assert before == state(model)
