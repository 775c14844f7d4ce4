# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weight_readers import SliceError, TensorMeta, TensorSlice
from weight_readers_files import coalesce
from weight_readers_safetensors import sliced_shape, stored_shape, wanted_ranges


def meta(source_dtype: str, shape: list[int], nbytes: int, offset: int = 100) -> TensorMeta:
    return TensorMeta(
        name="w",
        dtype="",
        source_dtype=source_dtype,
        shape=tuple(shape),
        stored_shape=tuple(shape),
        nbytes=nbytes,
        file="m.safetensors",
        offset=offset,
    )


def gathered(data: bytes, ranges: list[tuple[int, int]], offset: int = 100) -> bytes:
    return b"".join(data[begin - offset : begin - offset + length] for begin, length in ranges)


TORCH = {"U8": torch.uint8, "I16": torch.int16, "F32": torch.float32, "C64": torch.complex64}
bounds = st.none() | st.integers(-7, 7)


@settings(deadline=None)
@given(
    dtype=st.sampled_from(sorted(TORCH)),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    cuts=st.dictionaries(st.integers(0, 3), st.tuples(bounds, bounds), max_size=3),
)
def test_the_ranges_of_a_part_are_the_bytes_that_torch_takes(
    dtype: str, shape: list[int], cuts: dict[int, tuple[int | None, int | None]]
) -> None:
    cuts = {dim: ends for dim, ends in cuts.items() if dim < len(shape)}
    count = math.prod(shape) * TORCH[dtype].itemsize
    data = bytes(index % 251 for index in range(count))
    whole = torch.tensor(list(data), dtype=torch.uint8).view(TORCH[dtype]).reshape(shape)
    expected = whole[tuple(slice(*cuts.get(dim, (None, None))) for dim in range(len(shape)))]

    slices = tuple(TensorSlice(dim=dim, start=start, stop=stop) for dim, (start, stop) in cuts.items())
    part = slices[0] if len(slices) == 1 else slices
    ranges = wanted_ranges(meta(dtype, shape, count), part)

    assert bytes(expected.contiguous().reshape(-1).view(torch.uint8).tolist()) == gathered(data, ranges)
    assert tuple(expected.shape) == sliced_shape(meta(dtype, shape, count), part)
    assert ranges == coalesce(ranges)


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=2),
    last=st.integers(0, 4),
    dim=st.integers(0, 2),
    start=st.integers(0, 4),
    stop=st.integers(0, 4),
)
def test_the_ranges_of_an_f4_slice_are_the_bytes_of_the_packed_tensor(
    shape: list[int], last: int, dim: int, start: int, stop: int
) -> None:
    logical, dim = [*shape, 2 * last], min(dim, len(shape))
    scale = 2 if dim == len(shape) else 1
    count = math.prod(logical) // 2
    data = bytes(range(count))
    packed = torch.tensor(list(data), dtype=torch.uint8).reshape(stored_shape("F4", logical))
    index = [slice(None)] * packed.dim()
    index[dim] = slice(start, stop)

    part = TensorSlice(dim=dim, start=start * scale, stop=stop * scale)
    found = wanted_ranges(meta("F4", logical, count), part)

    assert bytes(packed[tuple(index)].reshape(-1).tolist()) == gathered(data, found)
    assert tuple(packed[tuple(index)].shape) == stored_shape("F4", sliced_shape(meta("F4", logical, count), part))


def test_the_whole_tensor_is_one_range_and_an_empty_one_none() -> None:
    assert wanted_ranges(meta("F32", [2, 3], 24)) == [(100, 24)]
    assert wanted_ranges(meta("F32", [2, 3], 24), TensorSlice(dim=1)) == [(100, 24)]
    assert wanted_ranges(meta("F32", [2, 0], 0)) == []
    assert wanted_ranges(meta("F32", [2, 0], 0), TensorSlice(dim=0, stop=1)) == []
    assert wanted_ranges(meta("F32", [2, 3], 24), TensorSlice(dim=0, start=5)) == []


def test_rows_are_one_range_and_columns_one_for_each_row() -> None:
    assert wanted_ranges(meta("F32", [4, 3], 48), TensorSlice(dim=0, start=1, stop=3)) == [(112, 24)]
    assert wanted_ranges(meta("F32", [3, 4], 48), TensorSlice(dim=1, start=1, stop=2)) == [(104, 4), (120, 4), (136, 4)]


@pytest.mark.parametrize(("start", "stop"), [(1, 4), (0, 3), (1, 3)])
def test_a_slice_inside_a_byte_is_refused(start: int, stop: int) -> None:
    with pytest.raises(SliceError, match=r"cuts F4 inside a byte of 2 elements: .*tensor 'w' ") as caught:
        wanted_ranges(meta("F4", [2, 4], 4), TensorSlice(dim=1, start=start, stop=stop))
    assert f"(expected multiples of 2: 0:4 holds it, found {start}:{stop} of 4). Slice 0:4 of dim" in str(caught.value)


def test_nothing_of_the_packed_dimension_is_nothing_wherever_it_lies() -> None:
    for start, stop in ((1, 1), (3, 1), (9, 9)):
        part = TensorSlice(dim=1, start=start, stop=stop)
        assert (wanted_ranges(meta("F4", [2, 4], 4), part), sliced_shape(meta("F4", [2, 4], 4), part)) == ([], (2, 0))


def test_no_rows_of_half_a_byte_are_refused_as_rows_of_it_are() -> None:
    for ask in (wanted_ranges, sliced_shape):
        with pytest.raises(SliceError, match="inside a byte of 2 elements"):
            ask(meta("F4", [2, 4], 4), (TensorSlice(dim=0, stop=0), TensorSlice(dim=1, start=1)))


def test_six_bit_dtypes_are_cut_at_four_elements() -> None:
    assert wanted_ranges(meta("F6_E2M3", [8], 6), TensorSlice(dim=0, start=4)) == [(103, 3)]
    with pytest.raises(ValueError, match="4 elements"):
        wanted_ranges(meta("F6_E2M3", [8], 6), TensorSlice(dim=0, start=2))
    rows, columns = TensorSlice(dim=0, start=1, stop=3), TensorSlice(dim=1, start=4)
    assert wanted_ranges(meta("F6_E2M3", [3, 8], 18), (rows, columns)) == [(109, 3), (115, 3)]
    with pytest.raises(ValueError, match="slice 1:3 of dimension 0 and 2: of dimension 1 cuts F6_E2M3 inside a byte"):
        wanted_ranges(meta("F6_E2M3", [3, 8], 18), (rows, TensorSlice(dim=1, start=2)))


@pytest.mark.parametrize("shape", [[], [2, 3]])
def test_a_dimension_the_tensor_lacks_names_the_tensor(shape: list[int]) -> None:
    for ask in (wanted_ranges, sliced_shape):
        with pytest.raises(SliceError, match=r"dimension 2 .*: m\.safetensors, tensor 'w'"):
            ask(meta("F32", shape, 24), TensorSlice(dim=2))


def test_stored_shapes_halve_the_last_dimension_of_f4_only() -> None:
    assert stored_shape("F4", [3, 4]) == (3, 2)
    assert stored_shape("F32", [3, 4]) == (3, 4)
    assert stored_shape("F6_E2M3", [4]) == (4,)
    for shape in ([3], []):
        with pytest.raises(ValueError, match="divisible by 2"):
            stored_shape("F4", shape)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(0, [(0, 8), (10, 2), (20, 4)]), (2, [(0, 12), (20, 4)]), (8, [(0, 24)])],
)
def test_ranges_are_joined_across_small_gaps(gap: int, expected: list[tuple[int, int]]) -> None:
    assert coalesce([(20, 4), (4, 4), (0, 4), (0, 6), (10, 2), (15, 0)], gap) == expected


def test_a_range_inside_another_is_swallowed() -> None:
    assert coalesce([(0, 10), (2, 3), (10, 1)]) == [(0, 11)]


def test_a_negative_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        coalesce([], -1)
