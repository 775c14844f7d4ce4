# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors: what slices of several dimensions have in common, against indexing in torch."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weight_readers import TensorPart, TensorSlice
from weight_readers.slices import part_bounds, part_words, stretch_count, stretches

ends = st.none() | st.integers(-7, 7)


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[int], dict[int, tuple[int | None, int | None]]]:
    """A shape, and the ends of slices of some of its dimensions, which are counted from either side."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    dims = draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    return shape, {draw(st.sampled_from((dim, dim - len(shape)))): (draw(ends), draw(ends)) for dim in dims}


@settings(deadline=None)
@given(parts())
def test_stretches_are_the_elements_that_torch_takes_and_are_apart(
    drawn: tuple[list[int], dict[int, tuple[int | None, int | None]]],
) -> None:
    shape, cuts = drawn
    index = [slice(None)] * len(shape)
    for dim, (start, stop) in cuts.items():
        index[dim] = slice(start, stop)
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    expected = whole[tuple(index)]

    part = tuple(TensorSlice(dim=dim, start=start, stop=stop) for dim, (start, stop) in cuts.items())
    bounds = part_bounds(part, shape)
    length, begins = stretches(shape, bounds)

    assert tuple(expected.shape) == tuple(stop - start for start, stop in bounds)
    assert expected.flatten().tolist() == [place for begin in begins for place in range(begin, begin + length)]
    assert all(begin + length < after for begin, after in itertools.pairwise(begins))
    assert stretch_count(shape, bounds) == len(begins)


@pytest.mark.parametrize(
    ("cuts", "regular"),
    [
        ({2: (1, 2)}, True),
        ({1: (0, 2), 2: (1, 2)}, False),
        ({0: (1, 3), 2: (1, 2)}, True),
        ({0: (1, 2), 1: (1, 3), 2: (1, 2)}, True),
        ({1: (1, 3)}, True),
    ],
)
def test_stretches_at_equal_distances_are_a_range(cuts: dict[int, tuple[int, int]], regular: bool) -> None:
    part = tuple(TensorSlice(dim=dim, start=start, stop=stop) for dim, (start, stop) in cuts.items())
    _, begins = stretches((4, 5, 6), part_bounds(part, (4, 5, 6)))
    assert isinstance(begins, range) is regular


def test_a_tensor_without_dimensions_is_one_stretch() -> None:
    assert stretches((), part_bounds((), ())) == (1, range(1))


@pytest.mark.parametrize(
    ("part", "error", "said"),
    [
        ((TensorSlice(dim=0), TensorSlice(dim=2)), IndexError, r"dimension 2 is out of range for shape \[4, 6\]"),
        ((TensorSlice(dim=0, stop=2), TensorSlice(dim=-2)), ValueError, "two slices are of dimension 0: :2 of dimens"),
    ],
)
def test_slices_that_cannot_be_together_are_refused(part: TensorPart, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        part_bounds(part, (4, 6))


def test_numbers_of_a_slice_are_whatever_python_takes_as_an_index_and_kept_as_int() -> None:
    made = TensorSlice(dim=np.int64(1), start=np.uint8(2), stop=torch.tensor(4))  # type: ignore[arg-type]
    assert TensorSlice(dim=1, start=2, stop=4) == made
    assert {int} == {type(made.dim), type(made.start), type(made.stop)}
    assert json.loads(json.dumps(made.to_json())) == {"dim": 1, "start": 2, "stop": 4}


@pytest.mark.parametrize("value", [np.bool_(True), torch.tensor(True), torch.tensor([2]), np.array([2])], ids=repr)
def test_truth_values_and_lists_of_one_number_are_no_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match="must be a whole number"):
        TensorSlice(dim=0, start=value)


def test_a_part_is_said_as_python_writes_slices() -> None:
    part = (TensorSlice(dim=0, start=2, stop=4), TensorSlice(dim=1, stop=8), TensorSlice(dim=-1, start=-3))
    assert part_words(part) == "2:4 of dimension 0 and :8 of dimension 1 and -3: of dimension -1"
    assert part_words(part[0]) == "2:4 of dimension 0"
