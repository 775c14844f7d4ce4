# SPDX-License-Identifier: Apache-2.0
"""The operator that torch.compile sees in place of a dequantization."""

from __future__ import annotations

import importlib
from functools import partial

import numpy as np
import pytest
import torch
from unit.gguf.oracles import assert_same_floats, ggml
from unit.gguf.random_blocks import random_blocks

from weight_readers_gguf import dequant
from weight_readers_gguf.dequant import operator
from weight_readers_gguf.types import BY_NAME

Q4_K = BY_NAME["Q4_K"]


@pytest.fixture(autouse=True)
def _nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is no matter here, and this one begins at once."""
    monkeypatch.setattr(dequant, "dequantize", partial(dequant.dequantize, backend="torch"))


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
    torch.library.opcheck(operator.dequantize, (packed, Q4_K.id, torch.bfloat16))


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


def test_a_second_registration_is_harmless(packed: torch.Tensor) -> None:
    importlib.reload(operator)

    assert_same_floats(
        ggml("Q4_K", packed.numpy()),
        torch.ops.weight_readers_gguf.dequantize(packed, Q4_K.id, torch.float32).numpy(),
    )
