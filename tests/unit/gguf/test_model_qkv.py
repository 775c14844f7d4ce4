# SPDX-License-Identifier: Apache-2.0
"""Fused projections: rows grouped per head become ``[q_all, k_all, v_all]``, packed rows included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weight_readers import TargetMismatchError
from weight_readers_gguf.model import QKVLayout, QKVRows


def labelled(groups: list[str], head_dim: int) -> list[str]:
    return [f"{name}.{row}" for name in groups for row in range(head_dim)]


def reordered(rows: QKVRows, labels: list[str]) -> list[str]:
    order = rows(torch.arange(len(labels)))
    return [labels[index] for index in order]


def test_groups_of_one_query_key_and_value_each_come_apart() -> None:
    rows = QKVRows(layout=QKVLayout.GROUPED, heads=3, head_dim=2)
    grouped = labelled(["q0", "k0", "v0", "q1", "k1", "v1", "q2", "k2", "v2"], 2)
    expected = labelled(["q0", "q1", "q2", "k0", "k1", "k2", "v0", "v1", "v2"], 2)
    assert reordered(rows, grouped) == expected


def test_groups_of_several_queries_come_apart() -> None:
    rows = QKVRows(layout=QKVLayout.GROUPED, heads=4, kv_heads=2, head_dim=3)
    grouped = labelled(["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"], 3)
    expected = labelled(["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"], 3)
    assert reordered(rows, grouped) == expected


def test_rows_of_packed_bytes_move_whole() -> None:
    rows = QKVRows(layout=QKVLayout.GROUPED, heads=2, head_dim=1)
    packed = torch.arange(6 * 18, dtype=torch.uint8).reshape(6, 18)
    assert torch.equal(rows(packed), packed[[0, 3, 1, 4, 2, 5]])


def test_a_contiguous_source_is_left_as_it_is() -> None:
    tensor = torch.zeros(6, 4)
    assert QKVRows(layout=QKVLayout.CONTIGUOUS, heads=2, head_dim=1)(tensor) is tensor


@pytest.mark.parametrize("layout", list(QKVLayout))
def test_a_projection_of_another_number_of_rows_is_refused(layout: QKVLayout) -> None:
    with pytest.raises(TargetMismatchError, match=r"\[5, 4\] does not have the 6 rows"):
        QKVRows(layout=layout, heads=2, head_dim=1)(torch.zeros(5, 4))


@pytest.mark.parametrize("numbers", [{"heads": 0}, {"head_dim": 0}, {"kv_heads": 0}, {"heads": 3, "kv_heads": 2}])
def test_numbers_that_make_no_groups_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        QKVRows(**{"layout": "grouped", "heads": 2, "head_dim": 4, **numbers})


def test_a_layout_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="interleaved"):
        QKVRows(layout="interleaved", heads=2, head_dim=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["heads", "head_dim", "kv_heads"])
@pytest.mark.parametrize("wrong", ["4", 4.0, True, []])
def test_what_is_no_number_of_heads_is_refused_by_its_name(argument: str, wrong: Any) -> None:
    sizes: dict[str, Any] = {"heads": 4, "head_dim": 8, "kv_heads": 2, argument: wrong}
    with pytest.raises(TypeError, match=f"^{argument} must be a whole number"):
        QKVRows(layout=QKVLayout.GROUPED, **sizes)
