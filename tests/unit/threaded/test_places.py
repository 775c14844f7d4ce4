# SPDX-License-Identifier: Apache-2.0
"""The memory of a tensor to be read: fresh, existing or staged, and how strided targets fall into blocks."""

from __future__ import annotations

import pytest
import torch

from weight_readers_files import Wanted
from weight_readers_files.targets import blocks
from weight_readers_threaded.places import Existing, Fresh, Staged
from weight_readers_threaded.staging import ring_for


def wanted(*shape: int) -> Wanted:
    nbytes = torch.empty(shape, dtype=torch.int16).nbytes
    return Wanted("t", torch.int16, shape, None, [(100, nbytes)], 100, 100 + nbytes, nbytes)


def test_a_fresh_tensor_is_handed_over_once_and_held_no_longer() -> None:
    place = Fresh("file", wanted(2))
    assert (place.name, place.path, place.ranges, place.cost) == ("t", "file", [(100, 4)], 4)
    place.allocate()
    place.buffer(2, 2)[:] = b"\x05\0"
    tensor = place.take()
    assert tensor[1] == 5
    assert place.take().data_ptr() != tensor.data_ptr()


def test_a_fresh_tensor_without_elements_needs_no_request() -> None:
    assert tuple(Fresh("file", wanted(0, 3)).take().shape) == (0, 3)


def test_an_existing_tensor_costs_nothing_and_knows_whether_it_was_written_to() -> None:
    target = torch.zeros(2, dtype=torch.int16)
    place = Existing("file", wanted(2), target)
    place.allocate()
    assert (place.cost, place.written) == (0, False)
    place.buffer(0, 2)[:] = b"\x07\0"
    assert (place.written, target.tolist()) == (True, [7, 0])


def test_a_staged_block_arrives_when_it_is_delivered() -> None:
    target = torch.zeros(2, 2, dtype=torch.int16).t()
    place = Staged("t", "file", [(100, 8)], 8, lambda: target, ring_for(target.device))
    place.allocate()
    place.buffer(0, 8)[:] = bytes([1, 0, 2, 0, 3, 0, 4, 0])
    assert (place.delivered, int(target.sum())) == (False, 0)
    place.deliver()
    assert (place.delivered, target.tolist()) == (True, [[1, 2], [3, 4]])


@pytest.mark.parametrize("shape", [(), (7,), (5, 3), (4, 1, 6), (2, 3, 4)])
@pytest.mark.parametrize("limit", [1, 2, 5, 8, 24, 1000])
def test_blocks_are_all_elements_in_order(shape: tuple[int, ...], limit: int) -> None:
    numbers = torch.arange(torch.empty(shape).numel(), dtype=torch.int16).view(shape)
    parts = list(blocks(numbers.t() if numbers.dim() == 2 else numbers, limit))
    expected = (numbers.t() if numbers.dim() == 2 else numbers).flatten().tolist()
    assert expected == [value for part in parts for value in part.flatten().tolist()]
    assert all(part.nbytes <= max(limit, 2) for part in parts)


def test_blocks_are_views_of_the_target() -> None:
    target = torch.zeros(6, 4)[:, 1:3]
    for number, part in enumerate(blocks(target, 16)):
        part.fill_(number + 1)
    assert target.tolist() == [[1.0] * 2] * 2 + [[2.0] * 2] * 2 + [[3.0] * 2] * 2
