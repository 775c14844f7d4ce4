# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import floats, write_tensors

from weight_readers_loader import open_checkpoint

WHOLE = torch.arange(24, dtype=torch.float32).reshape(4, 6)

INDEXES: list[Any] = [
    1, -1, slice(None, None, 2), slice(5, 2), slice(1, 100), slice(-3, -1), (slice(None), 1), (Ellipsis, 0),
    (slice(1, 4, 2), slice(None, None, 3)), (2, slice(1, 3)), (0, 0), None, (None, 1), Ellipsis, (), [0, 2],
    torch.tensor([True, False, True, False]), True, slice(3, None, 4),
]  # fmt: skip


@pytest.fixture
def lazy(tmp_path: Path) -> Any:
    write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [4, 6], floats(*range(24)))})
    return open_checkpoint(tmp_path).get_slice("w")


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_indexing_agrees_with_torch(lazy: Any, index: Any) -> None:
    expected = WHOLE[index]
    found = lazy[index]
    assert expected.shape == found.shape
    assert torch.equal(expected, found)


@pytest.mark.parametrize("index", [4, -5, (0, 6), (0, 0, 0), "a", slice(None, None, -1), 1.5], ids=str)
def test_an_index_that_torch_refuses_is_refused_alike(lazy: Any, index: Any) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever torch raises is the oracle
        WHOLE[index]
    with pytest.raises(expected.type):
        lazy[index]


def test_a_scalar_is_indexed_by_nothing(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"s": ("F32", [], floats(5))})
    lazy = open_checkpoint(tmp_path).get_slice("s")
    assert torch.tensor(5.0) == lazy[()]
    assert (lazy.shape, lazy.dtype) == ((), "float32")
