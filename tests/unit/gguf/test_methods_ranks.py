# SPDX-License-Identifier: Apache-2.0
"""Layers of every type split over 1, 2 and 4 ranks: bytes bit for bit, and what they compute together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from unit.gguf.packed_layers import ALL, EngineLinear, blocks, config_of, create, dense, whole_numbers

from weight_readers_gguf.types import BY_NAME, TYPES

every_type = pytest.mark.parametrize("name", [TYPES[each].name for each in ALL])
ROWS = 8


def split(folder: Path, name: str, *, by_row: bool, world: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What each rank holds, and what it computes of the same input."""
    columns = 4 * BY_NAME[name].block
    packed, x = blocks(name, ROWS, columns), whole_numbers(3, columns).sign()
    config = config_of(folder, {"w.weight": (name, packed)})
    held, outs = [], []
    for rank in range(world):
        layer = EngineLinear(columns, [ROWS], tp_rank=rank, tp_size=world, by_row=by_row)
        method = create(config, layer, "w")
        method.load_shard(layer, packed)
        held.append(layer.get_parameter("qweight").data)
        outs.append(method.apply(layer, x.chunk(world, dim=1)[rank] if by_row else x))
    return held, outs


def whole(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    columns = 4 * BY_NAME[name].block
    packed = blocks(name, ROWS, columns)
    return packed, whole_numbers(3, columns).sign() @ dense(name, packed).T


@every_type
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_that_split_the_output_hold_and_compute_the_whole(tmp_path: Path, name: str, world: int) -> None:
    held, outs = split(tmp_path, name, by_row=False, world=world)
    packed, expected = whole(name)
    assert torch.cat(held).equal(packed)
    assert torch.cat(outs, dim=1).equal(expected)


@every_type
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_split_the_input_hold_and_compute_the_whole(tmp_path: Path, name: str, world: int) -> None:
    held, outs = split(tmp_path, name, by_row=True, world=world)
    packed, expected = whole(name)
    assert torch.cat(held, dim=1).equal(packed)
    assert torch.stack(outs).sum(0).equal(expected)
