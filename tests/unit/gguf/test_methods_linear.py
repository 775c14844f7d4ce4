# SPDX-License-Identifier: Apache-2.0
"""Linear layers that keep their weight packed: what is allocated, what is computed, what is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from unit.gguf.packed_layers import EngineLinear, blocks, config_of, create, dense, numbers, whole_numbers

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods import GGUFConfig, GGUFLinearMethod
from weight_readers_gguf.types import BY_NAME

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROWS, COLUMNS = 24, 256


@pytest.fixture
def packed() -> torch.Tensor:
    return blocks("Q4_0", ROWS, COLUMNS)


@pytest.fixture
def config(tmp_path: Path, packed: torch.Tensor) -> GGUFConfig:
    return config_of(tmp_path, {"up.weight": ("Q4_0", packed)})


@pytest.fixture
def layer() -> EngineLinear:
    return EngineLinear(COLUMNS, [ROWS])


@pytest.fixture
def method(config: GGUFConfig, layer: EngineLinear, packed: torch.Tensor) -> GGUFLinearMethod:
    made = create(config, layer, "up")
    made.load_shard(layer, packed)
    return made  # type: ignore[no-any-return]


def weight(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return dense("Q4_0", packed).to(dtype)


def test_only_packed_bytes_are_registered(config: GGUFConfig, layer: EngineLinear) -> None:
    create(config, layer, "up")
    assert {name: (p.dtype, tuple(p.shape)) for name, p in layer.named_parameters()} == {
        "qweight": (torch.uint8, (ROWS, COLUMNS // 32 * 18))
    }
    assert not layer.get_parameter("qweight").requires_grad
    assert list(layer.state_dict()) == ["qweight"]


def test_the_parameter_says_what_its_bytes_are(config: GGUFConfig, layer: EngineLinear) -> None:
    create(config, layer, "up", quant_hint="theirs")
    qweight: Any = layer.get_parameter("qweight")
    assert qweight.ggml_type == BY_NAME["Q4_0"].id
    assert (qweight.input_dim, qweight.output_dim) == (1, 0)
    assert qweight.logical_shape == (ROWS, COLUMNS)
    assert qweight.quant_hint == "theirs"


def test_the_engines_own_loader_is_kept_where_the_parameter_is_a_matrix(
    config: GGUFConfig, layer: EngineLinear
) -> None:
    loader = object()
    create(config, layer, "up", weight_loader=loader)
    assert layer.get_parameter("qweight").weight_loader is loader  # type: ignore[attr-defined]


def test_the_layer_can_be_made_on_the_meta_device(config: GGUFConfig, layer: EngineLinear) -> None:
    with torch.device("meta"):
        create(config, layer, "up")
    assert layer.get_parameter("qweight").is_meta


def test_a_layer_without_memory_neither_computes_nor_loads(
    config: GGUFConfig, layer: EngineLinear, packed: torch.Tensor
) -> None:
    with torch.device("meta"):
        method = create(config, layer, "up")
    with pytest.raises(RuntimeError, match="packed weight of layer 'up' has no memory yet"):
        method.apply(layer, numbers(2, COLUMNS))
    with pytest.raises(ValueError, match="packed weight of layer 'up' has no memory to load into"):
        method.load_shard(layer, packed)
    assert method.apply(layer, numbers(2, COLUMNS).to("meta")).shape == (2, ROWS)


@pytest.mark.parametrize("size", [1, ROWS - 1, ROWS + 1])
def test_a_bias_of_another_size_is_refused(method: GGUFLinearMethod, layer: EngineLinear, size: int) -> None:
    with pytest.raises(ValueError, match=rf"layer 'up' takes a bias \[{ROWS}\], not \[{size}\]"):
        method.apply(layer, numbers(2, COLUMNS), torch.zeros(size))


@pytest.mark.parametrize("columns", [float(COLUMNS), str(COLUMNS), True, None])
def test_sizes_that_are_no_whole_numbers_are_refused(config: GGUFConfig, layer: EngineLinear, columns: Any) -> None:
    method = config.get_quant_method(layer, "up")
    assert isinstance(method, GGUFLinearMethod)
    with pytest.raises(TypeError, match="layer 'up' declares sizes that are no whole numbers"):
        method.create_weights(layer, columns, [ROWS], COLUMNS, ROWS, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(COLUMNS,), (3, COLUMNS), (2, 3, COLUMNS), (1, 1, 5, COLUMNS)])
def test_the_output_is_that_of_the_dense_weight(
    method: GGUFLinearMethod, layer: EngineLinear, packed: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = numbers(*shape, dtype=dtype)
    out = method.apply(layer, x)
    assert out.dtype == dtype
    assert out.equal(linear(x, weight(packed, dtype)))


@pytest.mark.parametrize("name", ["Q8_0", "Q6_K"])
def test_types_of_other_families_are_computed_with_too(tmp_path: Path, name: str) -> None:
    packed = blocks(name, 8, 512)
    layer = EngineLinear(512, [8])
    method = create(config_of(tmp_path, {"w.weight": (name, packed)}), layer, "w")
    method.load_shard(layer, packed)
    x = numbers(3, 512)
    assert method.apply(layer, x).equal(linear(x, dense(name, packed)))


def test_strides_of_the_input_do_not_matter(
    method: GGUFLinearMethod, layer: EngineLinear, packed: torch.Tensor
) -> None:
    for x in (numbers(COLUMNS, 4).t(), numbers(4, 2 * COLUMNS)[:, ::2], numbers(1, COLUMNS).expand(3, COLUMNS)):
        torch.testing.assert_close(method.apply(layer, x), linear(x.contiguous(), weight(packed, torch.float32)))


@pytest.mark.parametrize("shape", [(0, COLUMNS), (2, 0, COLUMNS)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_tokens_give_no_rows(
    method: GGUFLinearMethod, layer: EngineLinear, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    out = method.apply(layer, torch.empty(shape, dtype=dtype), torch.zeros(ROWS))
    assert out.shape == (*shape[:-1], ROWS)
    assert out.dtype == dtype


@pytest.mark.parametrize("bias_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_of_another_dtype_takes_part_in_that_of_the_input(
    method: GGUFLinearMethod,
    layer: EngineLinear,
    packed: torch.Tensor,
    dtype: torch.dtype,
    bias_dtype: torch.dtype,
) -> None:
    x, bias = numbers(3, COLUMNS, dtype=dtype), numbers(ROWS, dtype=bias_dtype)
    out = method.apply(layer, x, bias)
    assert out.dtype == dtype
    assert out.equal(linear(x, weight(packed, dtype), bias.to(dtype)))


def test_under_autocast_the_output_is_what_a_dense_layer_gives(
    method: GGUFLinearMethod, layer: EngineLinear, packed: torch.Tensor
) -> None:
    x = numbers(3, COLUMNS)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = method.apply(layer, x), linear(x, weight(packed, torch.float32))
    assert out.dtype == expected.dtype == torch.bfloat16
    assert out.equal(expected)


def test_the_gradient_reaches_the_input(method: GGUFLinearMethod, layer: EngineLinear, packed: torch.Tensor) -> None:
    x = numbers(3, COLUMNS).requires_grad_()
    out = method.apply(layer, x)
    method.apply(layer, x.detach())  # what another call computes in the meantime must not matter
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weight(packed, torch.float32).sum(0).expand(3, -1))


def test_a_layer_first_used_in_inference_mode_can_be_used_outside_of_it(
    method: GGUFLinearMethod, layer: EngineLinear
) -> None:
    x = numbers(3, COLUMNS)
    with torch.inference_mode():
        expected = method.apply(layer, x)
    assert method.apply(layer, x).equal(expected)


def test_a_wrong_width_or_dtype_of_the_input_is_named_with_the_layer(
    method: GGUFLinearMethod, layer: EngineLinear
) -> None:
    with pytest.raises(ValueError, match=r"layer 'up' takes \[..., 256\], not \[3, 255\]"):
        method.apply(layer, torch.zeros(3, 255))
    with pytest.raises(ValueError, match=r"not \[\]"):
        method.apply(layer, torch.tensor(1.0))
    with pytest.raises(TypeError, match=r"layer 'up' takes float32, float16 or bfloat16, not torch.float64"):
        method.apply(layer, torch.zeros(3, COLUMNS, dtype=torch.float64))


def test_a_layer_without_packed_weight_is_named(method: GGUFLinearMethod) -> None:
    with pytest.raises(TypeError, match="Linear has no packed weight: create_weights was not called"):
        method.load_shard(nn.Linear(2, 2), torch.zeros(2, 2))


@pytest.mark.parametrize(("columns", "outputs"), [(COLUMNS, [ROWS + 1]), (COLUMNS + 32, [ROWS]), (ROWS, [COLUMNS])])
def test_a_layer_of_another_shape_is_refused_before_anything_is_allocated(
    config: GGUFConfig, columns: int, outputs: list[int]
) -> None:
    layer = EngineLinear(columns, outputs)
    with pytest.raises(TargetMismatchError) as caught:
        create(config, layer, "up")
    assert caught.value.shapes == (("up.weight", f"[{ROWS}, {COLUMNS}]", f"[{outputs[0]}, {columns}]"),)
    assert "does not fit layer 'up'" in str(caught.value)
    assert list(layer.parameters()) == []


def test_an_input_partition_that_cuts_a_block_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"down.weight": ("Q4_K", blocks("Q4_K", 8, 1024))})
    layer = EngineLinear(1024, [8], tp_size=8, tp_rank=0, by_row=True)
    with pytest.raises(TargetMismatchError) as caught:
        create(config, layer, "down")
    assert str(caught.value) == (
        "layer 'down' cannot be split over 8 ranks along its input: 1024 columns make 128 a rank,"
        " no whole number of Q4_K blocks of 256. Use a tensor-parallel size of 4, or keep this layer whole on every"
        " rank"
    )
    assert list(layer.parameters()) == []


def test_sizes_that_no_number_of_ranks_explains_are_refused(config: GGUFConfig, layer: EngineLinear) -> None:
    method = config.get_quant_method(layer, "up")
    assert method is not None
    for sizes in [(100, [ROWS], COLUMNS, ROWS), (COLUMNS, [7], COLUMNS, ROWS), (2 * COLUMNS, [ROWS], COLUMNS, ROWS)]:
        with pytest.raises(TargetMismatchError, match="no number of ranks makes the one of the other"):
            method.create_weights(layer, *sizes, torch.float32)


def test_a_copied_or_pickled_layer_computes_the_same(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    x = numbers(3, COLUMNS)
    expected = method.apply(layer, x)
    layer.quant_method = method
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        theirs = other.quant_method
        assert isinstance(theirs, GGUFLinearMethod)
        assert theirs.apply(other, x).equal(expected)


def test_the_bytes_do_not_follow_a_change_of_dtype(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    x = numbers(3, COLUMNS)
    expected = method.apply(layer, x)
    layer.to(torch.bfloat16)
    assert method.apply(layer, x).equal(expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiler_sees_one_graph(method: GGUFLinearMethod, layer: EngineLinear, backend: str) -> None:
    torch._dynamo.reset()
    bias = numbers(ROWS)
    compiled = torch.compile(lambda x: method.apply(layer, x, bias), fullgraph=True, backend=backend)
    x = numbers(3, COLUMNS)
    torch.testing.assert_close(compiled(x), method.apply(layer, x, bias))


def test_rows_of_one_value_each_prove_the_order(tmp_path: Path) -> None:
    # Q8_0 by hand: scale 1.0, codes all equal to the row's number, so that row r gives r times the sum of x.
    rows = [bytes.fromhex("003c") + bytes([row]) * 32 for row in range(4)]
    packed = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(4, 34)
    layer = nn.Linear(32, 4, bias=False, device="meta")
    method = create(config_of(tmp_path, {"w.weight": ("Q8_0", packed)}), layer, "w")
    method.load_shard(layer, packed)
    x = whole_numbers(2, 32)
    assert method.apply(layer, x).equal(x.sum(1, keepdim=True) * torch.arange(4.0))
