# SPDX-License-Identifier: Apache-2.0
"""Packed layers in the place of plain ones: what they compute, and what stays of the layer they replace."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from unit.gguf.gguf_bytes import write_gguf
from unit.gguf.oracles import ggml
from unit.gguf.random_blocks import random_blocks

from weight_readers_gguf.model import PackedEmbedding, PackedLinear, PackedWeight, fill, prepare_module
from weight_readers_gguf.types import BY_NAME

ROWS, COLUMNS = 12, 512


class ScaledEmbedding(nn.Embedding):
    """An embedding as transformers' Gemma has it: computes on with what its base class gives."""

    def __init__(self, scale: float) -> None:
        super().__init__(ROWS, COLUMNS)
        self.scale = nn.Buffer(torch.tensor(scale), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * self.scale.to(self.weight.dtype)


class DirectLinear(nn.Linear):
    """A layer that takes its weight in its own hands."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight * 2, self.bias)


def blocks(type_name: str, seed: int = 0) -> Any:
    kind = BY_NAME[type_name]
    return random_blocks(type_name, ROWS * COLUMNS // kind.block, seed).reshape(ROWS, -1)


def dense(type_name: str, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(ggml(type_name, blocks(type_name, seed)))


def packed(folder: Path, layer: nn.Module, type_name: str = "Q4_K", seed: int = 0) -> Any:
    """The layer, its weight packed bytes of ``seed``, and its bias as it was."""
    bias = getattr(layer, "bias", None)
    root = nn.ModuleDict({"layer": layer})
    file = folder / f"{type_name}{seed}.gguf"
    write_gguf(file, {"layer.weight": (BY_NAME[type_name].id, (ROWS, COLUMNS), blocks(type_name, seed).tobytes())})
    prepared = prepare_module(root, file, missing_ok=["layer.bias"])
    fill(prepared, [("layer.weight", torch.from_numpy(blocks(type_name, seed)))])
    assert getattr(root["layer"], "bias", None) is bias
    return root["layer"]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, COLUMNS, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def linear(tmp_path: Path) -> PackedLinear:
    made: PackedLinear = packed(tmp_path, nn.Linear(COLUMNS, ROWS))
    return made


@pytest.fixture
def embedding(tmp_path: Path) -> PackedEmbedding:
    made: PackedEmbedding = packed(tmp_path, nn.Embedding(ROWS, COLUMNS), "Q6_K")
    return made


class TestALinearLayer:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_multiplies_with_the_weight_rounded_once(
        self, linear: PackedLinear, x: torch.Tensor, dtype: torch.dtype
    ) -> None:
        bias = linear.bias.detach()
        expected = functional.linear(x.to(dtype), dense("Q4_K").to(dtype), bias.to(dtype))
        found = linear(x.to(dtype))
        assert found.dtype is dtype
        torch.testing.assert_close(found, expected, equal_nan=True)

    def test_says_its_type(self, linear: PackedLinear) -> None:
        assert repr(linear) == "PackedLinear(in_features=512, out_features=12, bias=True, type=Q4_K)"

    def test_takes_a_lora_beside_its_bytes_and_gives_it_back(self, linear: PackedLinear, x: torch.Tensor) -> None:
        before, bytes_ = linear(x), linear.qweight.clone()
        a, b = torch.randn(4, COLUMNS), torch.randn(ROWS, 4)
        linear.attach_low_rank(a, b, scale=0.5)
        torch.testing.assert_close(linear(x), before + 0.5 * (x @ a.T @ b.T), equal_nan=True)
        assert linear.detach_low_rank()
        torch.testing.assert_close(linear(x), before, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(bytes_, linear.qweight)


class TestAnEmbedding:
    def test_gives_the_rows_of_the_dequantized_weight(self, embedding: PackedEmbedding) -> None:
        ids = torch.tensor([[0, 11], [5, 5]])
        torch.testing.assert_close(embedding(ids), dense("Q6_K")[ids], rtol=0, atol=0, equal_nan=True)

    def test_follows_a_cast_of_the_model_while_its_bytes_stay(self, embedding: PackedEmbedding) -> None:
        bytes_ = embedding.qweight.clone()
        embedding.to(torch.bfloat16)
        assert torch.equal(bytes_, embedding.qweight)
        ids = torch.arange(ROWS)
        expected = dense("Q6_K").to(torch.bfloat16)
        torch.testing.assert_close(embedding(ids), expected, rtol=0, atol=0, equal_nan=True)

    def test_a_row_that_is_not_there_is_an_error(self, embedding: PackedEmbedding) -> None:
        with pytest.raises(IndexError):
            embedding(torch.tensor([ROWS]))


class TestAnyPackedLayer:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn])
    def test_refuses_a_dtype_that_it_does_not_compute_in(self, linear: PackedLinear, dtype: torch.dtype) -> None:
        before = linear.bias.dtype
        with pytest.raises(TypeError, match=rf"layer 'layer' has a packed weight .* not in {dtype}"):
            linear.to(dtype)
        assert (linear.bias.dtype, linear.compute_dtype) == (before, torch.float32)

    def test_refuses_a_conversion_of_its_bytes_before_anything_is_converted(self, linear: PackedLinear) -> None:
        with pytest.raises(TypeError, match=r"\(Q4_K\) is bytes and cannot be converted to torch.float64"):
            linear.type(torch.float64)
        assert (linear.qweight.dtype, linear.bias.dtype) == (torch.uint8, torch.float32)

    @pytest.mark.parametrize(
        ("layer", "given"),
        [
            (nn.Linear(COLUMNS, ROWS, bias=False), torch.zeros(2, COLUMNS)),
            (nn.Embedding(ROWS, COLUMNS), torch.tensor([1])),
        ],
        ids=["linear", "embedding"],
    )
    def test_says_that_it_was_not_filled(self, tmp_path: Path, layer: nn.Module, given: torch.Tensor) -> None:
        file = write_gguf(
            tmp_path / "m.gguf", {"layer.weight": (BY_NAME["Q4_K"].id, (ROWS, COLUMNS), blocks("Q4_K").tobytes())}
        )
        prepare_module(nn.ModuleDict({"layer": layer}), file)
        with pytest.raises(RuntimeError, match="layer 'layer' has no memory yet"):
            layer(given)

    @pytest.mark.parametrize(
        ("a", "b", "scale", "said"), [(5, 1, 1.0, "a of"), (0, 5, 1.0, "b of"), (0, 1, "x", "scale")]
    )
    def test_names_what_no_low_rank_addition_can_be_of(
        self, linear: PackedLinear, a: Any, b: Any, scale: Any, said: str
    ) -> None:
        tensors = {0: torch.zeros(1, COLUMNS), 1: torch.zeros(ROWS, 1)}
        with pytest.raises(TypeError, match=f"{said} .*'layer' must be a"):
            linear.attach_low_rank(tensors.get(a, a), tensors.get(b, b), scale)

    def test_takes_tensors_only(self, linear: PackedLinear, embedding: PackedEmbedding) -> None:
        for layer in (linear, embedding):
            with pytest.raises(TypeError, match="layer 'layer' takes a tensor as input, not list"):
                layer([1, 2])


class TestASubclass:
    def test_keeps_what_its_forward_does_with_that_of_its_base(self, tmp_path: Path) -> None:
        layer = packed(tmp_path, ScaledEmbedding(0.5))
        assert isinstance(layer, ScaledEmbedding)
        expected = dense("Q4_K")[torch.tensor([3, 7])] * 0.5
        torch.testing.assert_close(layer(torch.tensor([3, 7])), expected, rtol=0, atol=0, equal_nan=True)

    def test_that_takes_its_weight_gets_the_dequantized_one(self, tmp_path: Path, x: torch.Tensor) -> None:
        layer = packed(tmp_path, DirectLinear(COLUMNS, ROWS))
        expected = functional.linear(x, dense("Q4_K") * 2, layer.bias)
        torch.testing.assert_close(layer(x), expected, equal_nan=True)

    def test_is_copied_and_pickled_whole(self, tmp_path: Path) -> None:
        layer = packed(tmp_path, ScaledEmbedding(0.25))
        ids = torch.arange(ROWS)
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert type(twin) is type(layer)
            assert torch.equal(twin.qweight, layer.qweight)
            torch.testing.assert_close(twin(ids), layer(ids), rtol=0, atol=0, equal_nan=True)


class TestWhatWasTheWeight:
    def test_knows_shape_dtype_and_device_without_dequantizing(self, linear: PackedLinear) -> None:
        weight = linear.weight
        assert isinstance(weight, PackedWeight)
        assert (torch.Size([ROWS, COLUMNS]), torch.float32, 2, ROWS * COLUMNS) == (
            weight.shape,
            weight.dtype,
            weight.ndim,
            weight.numel(),
        )
        assert (weight.device, weight.is_meta, weight.size(1)) == (torch.device("cpu"), False, COLUMNS)

    def test_answers_torch_with_its_numbers(self, linear: PackedLinear) -> None:
        expected = dense("Q4_K")
        for found in (linear.weight.t().T, linear.weight[:], torch.clone(linear.weight), linear.weight.dequantize()):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize(
        "compute",
        [
            lambda w: w == 0,
            lambda w: w != 0,
            lambda w: w > 0,
            lambda w: w <= 0,
            lambda w: abs(w),
            lambda w: w**2,
            lambda w: 2 / w,
            lambda w: w // 2,
            lambda w: w @ torch.ones(COLUMNS),
            lambda w: torch.ones(ROWS) @ w,
            lambda w: torch.stack(list(w)),
            lambda w: torch.from_numpy(np.asarray(w)),
            lambda w: torch.tensor(len(w)),
        ],
    )
    def test_answers_operators_with_its_numbers(self, tmp_path: Path, compute: Any) -> None:
        layer = packed(tmp_path, nn.Linear(COLUMNS, ROWS))
        torch.testing.assert_close(compute(layer.weight), compute(dense("Q4_K")), rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize(
        "write",
        [
            lambda w: w.data,
            lambda w: w.zero_(),
            lambda w: torch.relu_(w),
            lambda w: functional.relu(w, inplace=True),
            lambda w: torch.eye(ROWS, COLUMNS, out=w),
            lambda w: torch._foreach_add_([w], 1),
            lambda w: operator.iadd(w, 1),
            lambda w: operator.imul(w, 2),
            lambda w: operator.setitem(w, 0, 1),
        ],
    )
    def test_refuses_what_would_write_to_it(self, linear: PackedLinear, write: Any) -> None:
        with pytest.raises(TypeError, match="would write to a packed weight"):
            write(linear.weight)

    @pytest.mark.parametrize(
        "initialize",
        [
            nn.init.uniform_,
            nn.init.normal_,
            nn.init.trunc_normal_,
            nn.init.zeros_,
            nn.init.ones_,
            nn.init.eye_,
            nn.init.xavier_uniform_,
            nn.init.xavier_normal_,
            nn.init.kaiming_uniform_,
            nn.init.kaiming_normal_,
            nn.init.orthogonal_,
            partial(nn.init.constant_, val=1.0),
            partial(nn.init.sparse_, sparsity=0.5),
        ],
    )
    def test_refuses_to_be_initialized(self, linear: PackedLinear, initialize: Any) -> None:
        with pytest.raises(TypeError, match="would write to a packed weight"):
            initialize(linear.weight)

    def test_refuses_to_be_reset_with_its_layer(self, linear: PackedLinear, embedding: PackedEmbedding) -> None:
        for layer in (linear, embedding):
            with pytest.raises(TypeError, match=r"layer 'layer' is packed as .* cannot be initialized"):
                layer.reset_parameters()

    def test_can_be_the_source_of_a_write(self, linear: PackedLinear) -> None:
        target = torch.zeros(ROWS, COLUMNS).copy_(linear.weight)
        torch.testing.assert_close(target, dense("Q4_K"), rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("value", [nn.Parameter(torch.zeros(ROWS, COLUMNS)), torch.zeros(ROWS, COLUMNS), None])
    def test_cannot_be_replaced(self, linear: PackedLinear, value: Any) -> None:
        with pytest.raises(TypeError, match=r"layer 'layer' is packed as Q4_K \[12, 512\] and cannot be set to"):
            linear.weight = value

    def test_can_be_tied_to_that_of_another_layer(self, tmp_path: Path, linear: PackedLinear, x: torch.Tensor) -> None:
        other = packed(tmp_path, nn.Linear(COLUMNS, ROWS, bias=False), seed=1)
        linear.bias = None
        linear.weight = other.weight
        assert linear.qweight is other.qweight
        torch.testing.assert_close(linear(x), other(x), rtol=0, atol=0, equal_nan=True)

    def test_cannot_be_tied_to_blocks_of_another_type(self, tmp_path: Path, linear: PackedLinear) -> None:
        other = packed(tmp_path, nn.Linear(COLUMNS, ROWS), "Q6_K")
        with pytest.raises(TypeError, match=r"cannot be set to PackedWeight\(Q6_K"):
            linear.weight = other.weight

    def test_lacks_what_tensors_lack(self, linear: PackedLinear) -> None:
        with pytest.raises(AttributeError, match="no attribute 'weight_loader'"):
            linear.weight.weight_loader  # noqa: B018


class TestAStateDict:
    def test_goes_round(self, tmp_path: Path, linear: PackedLinear, x: torch.Tensor) -> None:
        other = packed(tmp_path, nn.Linear(COLUMNS, ROWS), seed=1)
        other.load_state_dict(linear.state_dict())
        torch.testing.assert_close(other(x), linear(x), rtol=0, atol=0, equal_nan=True)

    def test_goes_through_torch_save_with_weights_only(self, tmp_path: Path, linear: PackedLinear) -> None:
        torch.save(linear.state_dict(), tmp_path / "state.pt")
        linear.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

    def test_of_another_type_is_refused_before_a_byte_is_copied_though_the_sizes_agree(self, tmp_path: Path) -> None:
        mine = packed(tmp_path, nn.Linear(COLUMNS, ROWS, bias=False), "Q4_0")
        theirs = packed(tmp_path, nn.Linear(COLUMNS, ROWS, bias=False), "IQ4_NL", seed=1)
        assert mine.qweight.shape == theirs.qweight.shape
        before = mine.qweight.clone()
        with pytest.raises(RuntimeError, match=r"holds IQ4_NL \[12, 512\].*prepared for Q4_0 \[12, 512\]"):
            mine.load_state_dict(theirs.state_dict())
        assert torch.equal(before, mine.qweight)

    def test_with_numbers_in_the_place_of_bytes_is_refused(self, linear: PackedLinear) -> None:
        state = linear.state_dict()
        state["qweight"] = state["qweight"].float()
        with pytest.raises(RuntimeError, match="packed weights are uint8"):
            linear.load_state_dict(state)

    @pytest.mark.parametrize(
        "damaged",
        ["x", b"x", {}, [8], torch.zeros(2, 2), torch.tensor([]), torch.tensor(3.5), torch.zeros(3)],
        ids=str,
    )
    def test_with_a_damaged_type_is_refused_by_its_name(self, linear: PackedLinear, damaged: Any) -> None:
        before, state = linear.qweight.clone(), linear.state_dict()
        state["_extra_state"] = damaged
        with pytest.raises(RuntimeError, match=r"_extra_state is damaged.*here \[12, 12, 512\]"):
            linear.load_state_dict(state)
        assert torch.equal(before, linear.qweight)

    def test_that_says_no_type_is_incomplete(self, linear: PackedLinear) -> None:
        state = linear.state_dict()
        del state["_extra_state"]
        with pytest.raises(RuntimeError, match=r"Missing key.*_extra_state"):
            linear.load_state_dict(state)


class TestTracersAndTransforms:
    def test_a_traced_layer_multiplies_with_its_weight(self, linear: PackedLinear, x: torch.Tensor) -> None:
        graph = make_fx(lambda x: linear(x.relu()))(x)
        linear.workspace.release()
        torch.testing.assert_close(graph(-x), linear((-x).relu()), equal_nan=True)

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
    def test_so_does_one_traced_in_the_old_way(self, linear: PackedLinear, x: torch.Tensor) -> None:
        traced = torch.jit.trace(linear, (x,))
        torch.testing.assert_close(traced(-x), linear(-x), equal_nan=True)

    def test_fakes_give_a_fake(self, linear: PackedLinear) -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert linear(torch.empty(7, COLUMNS)).shape == (7, ROWS)

    def test_gradients_by_function_are_those_of_the_dequantized_weight(
        self, linear: PackedLinear, x: torch.Tensor
    ) -> None:
        weight = dense("Q4_K")
        found = torch.func.grad(lambda x: linear(x).sum())(x)
        torch.testing.assert_close(found, weight.sum(0).expand(2, 3, -1), equal_nan=True)
        torch.testing.assert_close(torch.func.jacrev(linear)(x[0, 0]), weight, equal_nan=True)
        torch.testing.assert_close(torch.vmap(linear)(x), linear(x), equal_nan=True)


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
class TestUnderTorchCompile:
    def test_a_linear_layer_is_one_graph(self, linear: PackedLinear, x: torch.Tensor) -> None:
        compiled = torch.compile(linear, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), linear(x), equal_nan=True)

    def test_a_subclass_is_one_graph(self, tmp_path: Path) -> None:
        layer = packed(tmp_path, ScaledEmbedding(0.5))
        ids = torch.arange(ROWS)
        torch.testing.assert_close(
            torch.compile(layer, fullgraph=True, backend="eager")(ids), layer(ids), equal_nan=True
        )
