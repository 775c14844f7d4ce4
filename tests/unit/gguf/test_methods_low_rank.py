# SPDX-License-Identifier: Apache-2.0
"""Low-rank additions beside a packed weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear
from unit.gguf.packed_layers import EngineLinear, blocks, config_of, create, dense, numbers

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods import GGUFLinearMethod

PACKED = blocks("Q4_0", 6, 64)
A, B = numbers(2, 64, seed=1), numbers(6, 2, seed=2)
X = numbers(3, 64)


@pytest.fixture
def layer() -> EngineLinear:
    return EngineLinear(64, [6])


@pytest.fixture
def method(tmp_path: Path, layer: EngineLinear) -> GGUFLinearMethod:
    made = create(config_of(tmp_path, {"w.weight": ("Q4_0", PACKED)}), layer, "w")
    made.load_shard(layer, PACKED)
    return made  # type: ignore[no-any-return]


def test_the_addition_is_that_of_the_merged_weight(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    method.attach_low_rank(layer, A, B, 0.5)
    expected = linear(X, dense("Q4_0", PACKED) + 0.5 * B @ A)
    torch.testing.assert_close(method.apply(layer, X), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_output_keeps_the_dtype_of_the_input(
    method: GGUFLinearMethod, layer: EngineLinear, dtype: torch.dtype
) -> None:
    method.attach_low_rank(layer, A, B)
    assert method.apply(layer, X.to(dtype)).dtype == dtype


def test_detaching_restores_the_output_and_the_bytes_never_change(
    method: GGUFLinearMethod, layer: EngineLinear
) -> None:
    before = method.apply(layer, X)
    method.attach_low_rank(layer, A, B)
    assert not method.apply(layer, X).equal(before)
    assert layer.get_parameter("qweight").equal(PACKED)
    assert method.detach_low_rank(layer)
    assert method.apply(layer, X).equal(before)
    assert not method.detach_low_rank(layer)


def test_the_addition_is_no_part_of_the_state(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    method.attach_low_rank(layer, A, B)
    assert list(layer.state_dict()) == ["qweight"]


def test_a_second_addition_is_refused_until_the_first_is_detached(
    method: GGUFLinearMethod, layer: EngineLinear
) -> None:
    method.attach_low_rank(layer, A, B)
    with pytest.raises(ValueError, match=r"layer 'w' has a low-rank addition already. Detach it first"):
        method.attach_low_rank(layer, A, B)
    method.detach_low_rank(layer)
    method.attach_low_rank(layer, A, B)


@pytest.mark.parametrize(
    ("a", "b"),
    [(A[:, :32], B), (A, B[:5]), (A, B[:, :1]), (A.T, B), (A[0], B), (A[:0], B[:, :0]), (A.int(), B), (A, B.int())],
    ids=["columns", "rows", "rank", "transposed", "vector", "empty", "integers a", "integers b"],
)
def test_matrices_that_do_not_fit_are_refused_and_nothing_is_attached(
    method: GGUFLinearMethod, layer: EngineLinear, a: torch.Tensor, b: torch.Tensor
) -> None:
    with pytest.raises(TargetMismatchError, match=r"does not fit its layer: w.lora_"):
        method.attach_low_rank(layer, a, b)
    assert not method.detach_low_rank(layer)


def test_matrices_without_memory_are_refused(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    with pytest.raises(ValueError, match="addition to 'w' has no memory"):
        method.attach_low_rank(layer, A, B.to("meta"))
    assert not method.detach_low_rank(layer)


def test_a_scale_that_is_no_number_is_refused(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    with pytest.raises(ValueError, match="must be finite, not nan"):
        method.attach_low_rank(layer, A, B, float("nan"))


def test_gradients_reach_the_matrices(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    method.attach_low_rank(layer, a, b)
    method.apply(layer, X).sum().backward()
    assert a.grad is not None
    assert b.grad is not None


def test_partial_sums_of_an_addition_over_a_split_input_add_up(
    tmp_path: Path, method: GGUFLinearMethod, layer: EngineLinear
) -> None:
    method.attach_low_rank(layer, A, B)
    expected = method.apply(layer, X)
    total = torch.zeros_like(expected)
    (tmp_path / "two").mkdir()
    config = config_of(tmp_path / "two", {"w.weight": ("Q4_0", PACKED)})
    for rank in range(2):
        half = EngineLinear(64, [6], tp_rank=rank, tp_size=2, by_row=True)
        theirs = create(config, half, "w")
        theirs.load_shard(half, PACKED)
        theirs.attach_low_rank(half, A.chunk(2, dim=1)[rank], B)
        total += theirs.apply(half, X.chunk(2, dim=1)[rank])
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)


def test_a_compiler_sees_one_graph(method: GGUFLinearMethod, layer: EngineLinear) -> None:
    torch._dynamo.reset()
    method.attach_low_rank(layer, A, B)
    compiled = torch.compile(lambda x: method.apply(layer, x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X), method.apply(layer, X))
