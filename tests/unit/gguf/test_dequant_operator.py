# SPDX-License-Identifier: Apache-2.0
"""The operator that torch.compile sees in place of a dequantization."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from unit.gguf.oracles import assert_same_floats, ggml
from unit.gguf.random_blocks import random_blocks

from weight_readers_gguf.dequant import dequantize, dispatch, operator
from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.types import BY_NAME

Q4_K = BY_NAME["Q4_K"]


@pytest.fixture(autouse=True)
def _nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is no matter here, and this one begins at once."""
    monkeypatch.setattr(operator, "compute", partial(dispatch.compute, backend="torch"))


@pytest.fixture
def packed() -> torch.Tensor:
    """Four rows of two blocks of Q4_K: 512 elements each."""
    return torch.from_numpy(random_blocks("Q4_K", 8).reshape(4, -1))


def linear(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    weight = torch.ops.weight_readers_gguf.dequantize(packed, Q4_K.id, x.dtype)
    return torch.nn.functional.linear(x, weight)


def test_it_dequantizes(packed: torch.Tensor) -> None:
    found = torch.ops.weight_readers_gguf.dequantize(packed, Q4_K.id, torch.float32)

    assert_same_floats(ggml("Q4_K", packed.numpy()), found.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_its_shape_and_dtype_are_known_without_bytes(packed: torch.Tensor, dtype: torch.dtype) -> None:
    found = torch.ops.weight_readers_gguf.dequantize(packed.to("meta"), Q4_K.id, dtype)

    assert (found.shape, found.dtype, found.device.type) == ((4, 512), dtype, "meta")


def test_torch_finds_its_registration_sound(packed: torch.Tensor) -> None:
    torch.library.opcheck(torch.ops.weight_readers_gguf.dequantize.default, (packed, Q4_K.id, torch.bfloat16))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_has_no_graph_break(packed: torch.Tensor, backend: str) -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 512), np.float32))
    expected = torch.nn.functional.linear(x, torch.from_numpy(ggml("Q4_K", packed.numpy())))

    torch.testing.assert_close(torch.compile(linear, fullgraph=True, backend=backend)(x, packed), expected)


def test_one_graph_serves_any_number_of_rows(packed: torch.Tensor) -> None:
    compiled = torch.compile(linear, fullgraph=True, backend="eager", dynamic=True)
    x = torch.ones((1, 512))

    for rows in (4, 3, 2):
        assert compiled(x, packed[:rows]).shape == (1, rows)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_no_packed_type_is_refused(packed: torch.Tensor, device: str) -> None:
    with pytest.raises(ValueError, match="99"):
        torch.ops.weight_readers_gguf.dequantize(packed.to(device), 99, torch.float32)


# What looks on


def through(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """The public function between two operations of torch."""
    return torch.nn.functional.linear(x, dequantize(packed, "Q4_K"))


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_a_tracer_records_it(packed: torch.Tensor, tracing_mode: str) -> None:
    x = torch.ones((2, 512))
    graph = make_fx(through, tracing_mode=tracing_mode)(x, packed)
    assert torch.ops.weight_readers_gguf.dequantize.default in [node.target for node in graph.graph.nodes]
    assert graph(x, packed).equal(through(x, packed))
    assert graph(x, packed.roll(1, 0)).equal(through(x, packed.roll(1, 0)))


def test_a_tracer_records_what_is_written_to_out(packed: torch.Tensor) -> None:
    graph = make_fx(lambda packed: dequantize(packed, "Q4_K", out=torch.zeros(4, 512)) + 1)(packed)
    assert graph(packed.roll(1, 0)).equal(dequantize(packed.roll(1, 0), "Q4_K") + 1)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_the_old_tracer_records_it_too(packed: torch.Tensor) -> None:
    x = torch.ones((2, 512))
    traced = torch.jit.trace(through, (x, packed))
    assert traced(x, packed.roll(1, 0)).equal(through(x, packed.roll(1, 0)))


def test_fake_tensors_get_a_fake_one(packed: torch.Tensor) -> None:
    with FakeTensorMode() as mode:
        found = dequantize(mode.from_tensor(packed), "Q4_K", dtype=torch.float16)
    assert isinstance(found, FakeTensor)
    assert (found.shape, found.dtype) == ((4, 512), torch.float16)
    outside: torch.Tensor = dequantize(mode.from_tensor(packed), "Q4_K")
    assert isinstance(outside, FakeTensor)


def test_constants_are_not_made_while_something_looks_on(packed: torch.Tensor) -> None:
    constants.shifts.cache_clear()
    with FakeTensorMode() as mode:
        dequantize(mode.from_tensor(packed), "Q4_K")
    assert_same_floats(ggml("Q4_K", packed.numpy()), dequantize(packed, "Q4_K").numpy())


def test_a_mode_sees_it_once(packed: torch.Tensor) -> None:
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        found = dequantize(packed, "Q4_K")
    assert seen == ["weight_readers_gguf.dequantize.default"]
    assert_same_floats(ggml("Q4_K", packed.numpy()), found.numpy())


def test_functions_of_functions_take_it(packed: torch.Tensor) -> None:
    weight = torch.from_numpy(ggml("Q4_K", packed.numpy()))
    x = torch.ones(3, 512)
    gradient = torch.func.grad(lambda x: through(x, packed).sum())(x)
    torch.testing.assert_close(gradient, weight.sum(0).expand(3, -1), equal_nan=True)
    torch.testing.assert_close(torch.func.jacrev(lambda x: through(x, packed))(x[0]), weight, equal_nan=True)
    assert torch.vmap(lambda row: dequantize(row, "Q4_K"))(packed).equal(dequantize(packed, "Q4_K"))


def test_a_second_registration_is_harmless(packed: torch.Tensor) -> None:
    held = operator.dequantize
    importlib.reload(operator)
    expected = ggml("Q4_K", packed.numpy())
    for call in (held, operator.dequantize, torch.ops.weight_readers_gguf.dequantize):
        assert_same_floats(expected, call(packed, Q4_K.id, torch.float32).numpy())
