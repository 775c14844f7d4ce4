# SPDX-License-Identifier: Apache-2.0
"""Whether two tensors share memory, against the addresses of all their elements."""

from __future__ import annotations

import random
import re

import pytest
import torch

from weight_readers import TargetMismatchError
from weight_readers_files.apart import footprint, meet, targets_apart


def views(memory: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """A view of a part of ``memory``, in up to three dimensions, of any steps and in any order."""
    shape = chance.choice([(2, 6, 10), (12, 10), (10, 12), (4, 30), (120,), (5, 4, 6)])
    view = memory.view(shape)
    for dim, size in enumerate(shape):
        begin = chance.randrange(size)
        view = view[
            (slice(None),) * dim + (slice(begin, chance.randint(begin + 1, size), chance.choice([1, 1, 2, 3])),)
        ]
    return view.permute(chance.sample(range(view.dim()), view.dim()))


def elements(view: torch.Tensor, memory: torch.Tensor) -> set[float]:
    assert view.untyped_storage().data_ptr() == memory.data_ptr()
    return set(view.flatten().tolist())


def test_two_views_meet_where_they_have_an_element_in_common() -> None:
    memory, chance = torch.arange(120.0), random.Random(0)
    met = 0
    for _ in range(2000):
        one, other = views(memory, chance), views(memory, chance)
        together = bool(elements(one, memory) & elements(other, memory))
        assert together == meet(footprint(one), footprint(other)), (one.tolist(), other.tolist())
        met += together
    assert 200 < met < 1800, "both happen"


def test_a_byte_in_common_is_enough() -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    words, bytes_ = memory.view(torch.int32)[::2], memory[4:].view(-1, 4)
    assert not meet(footprint(words), footprint(bytes_[::2]))
    assert meet(footprint(words), footprint(bytes_[1::2, 3:]))


def test_of_many_targets_the_two_are_named() -> None:
    fused = torch.zeros(64, 96)
    targets = {
        f"{n}.{part}": fused[8 * n : 8 * n + 8, 32 * at : 32 * at + 32]
        for n in range(8)
        for at, part in enumerate("qkv")
    }
    targets_apart(targets, {})
    targets["row"] = fused[27, 64:]
    with pytest.raises(TargetMismatchError, match=re.escape("targets '3.v' and 'row' share memory")):
        targets_apart(targets, {"row": targets["row"].data_ptr()})


def test_rows_and_columns_of_a_large_matrix_are_told_apart_without_looking_at_each() -> None:
    fused = torch.empty(1 << 20, 1 << 20, dtype=torch.uint8, device="meta").as_strided((1 << 20, 1 << 20), (1 << 20, 1))
    one, other = footprint(fused[:, : 1 << 19]), footprint(fused[:, 1 << 19 :])
    assert not meet(one, other._replace(begin=1 << 19))
    assert meet(one, other._replace(begin=(1 << 19) - 1))
