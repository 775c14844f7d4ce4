# SPDX-License-Identifier: Apache-2.0
"""Filters and slices: the part that was asked for, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.files import write_tensors
from support.tensors import BITS, bits, tensor, write_shards

from weight_readers import Feature, SliceError, TensorSlice, WeightReader
from weight_readers.reader import ReadStats

SHAPE = (4, 6, 8)
BOUNDS = [(None, None), (0, 2), (1, 3), (2, None), (None, -1), (-2, None), (-99, 99), (3, 2), (9, 12), (1, 1)]


@pytest.fixture(autouse=True)
def _only_where_declared(reader: WeightReader) -> None:
    if not {Feature.KEY_FILTER, Feature.SLICES} <= reader.info.features:
        pytest.skip("not declared")


def test_a_filter_that_wants_nothing_yields_nothing(reader: WeightReader, tmp_path: Path) -> None:
    assert list(reader.iter_weights(write_shards(tmp_path, 2), key_filter=lambda name: False)) == []


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_slices_agree_with_indexing_in_torch(reader: WeightReader, tmp_path: Path, dim: int) -> None:
    for dtype in ("U8", "BF16", "F32", "C64", "U64", "F8_E4M3FNUZ"):
        path = write_tensors(
            tmp_path / f"{dtype}.safetensors", {"before": tensor("F64", 2), "x": tensor(dtype, *SHAPE)}
        )
        whole = dict(reader.iter_weights([path]))["x"]
        for start, stop in BOUNDS:
            index = [slice(None)] * 3
            index[dim] = slice(start, stop)
            ((_, part),) = reader.iter_weights(
                [path],
                key_filter=lambda name: name == "x",
                slices={"x": TensorSlice(dim=dim, start=start, stop=stop)},
            )
            expected = whole.view(getattr(torch, f"int{BITS[dtype]}"))[tuple(index)]
            assert (whole.dtype, expected.shape) == (part.dtype, part.shape)
            assert bits(expected) == bits(part)


def test_a_slice_leaves_the_other_tensors_whole(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    got = dict(reader.iter_weights(shards, slices={"s1.t1": TensorSlice(dim=0, start=1, stop=2)}))
    assert [tuple(t.shape) for t in got.values()] == [(3, 5), (1, 5), (3, 5), (3, 5)]


@pytest.mark.parametrize(
    ("part", "rows", "columns"),
    [
        (TensorSlice(dim=1, start=2, stop=6), slice(None), slice(1, 3)),
        (TensorSlice(dim=1, start=-2), slice(None), slice(3, 4)),
        (TensorSlice(dim=0, start=1, stop=3), slice(1, 3), slice(None)),
        (TensorSlice(dim=1, start=3, stop=3), slice(None), slice(0, 0)),
        (TensorSlice(dim=1, start=5, stop=1), slice(None), slice(0, 0)),
    ],
)
def test_a_slice_of_pairs_counts_logical_elements(
    reader: WeightReader, tmp_path: Path, part: TensorSlice, rows: slice, columns: slice
) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("F4", 4, 8)})
    whole = dict(reader.iter_weights([path]))["x"].view(torch.uint8)
    ((_, got),) = reader.iter_weights([path], slices={"x": part})
    assert torch.float4_e2m1fn_x2 == got.dtype
    assert whole[rows, columns].tolist() == got.view(torch.uint8).tolist()


def test_slices_of_several_dimensions_agree_with_indexing_in_torch(reader: WeightReader, tmp_path: Path) -> None:
    for dtype, dims in itertools.product(("U8", "BF16", "C64"), ((0, 1), (2, 1), (0, 2), (1, 2, 0))):
        path = write_tensors(tmp_path / f"{dtype}.safetensors", {"b": tensor("U8", 3), "x": tensor(dtype, *SHAPE)})
        with safe_open(path, framework="pt") as file:
            whole = file.get_tensor("x")
        for first in range(len(BOUNDS)):
            ends = {dim: BOUNDS[(first + 3 * place) % len(BOUNDS)] for place, dim in enumerate(dims)}
            expected = whole[tuple(slice(*ends.get(dim, (None, None))) for dim in range(3))]
            part = tuple(TensorSlice(dim=dim, start=start, stop=stop) for dim, (start, stop) in ends.items())
            calls: list[ReadStats] = []
            found = dict(reader.iter_weights([path], slices={"x": part}, on_progress=calls.append))
            assert (expected.dtype, expected.shape) == (found["x"].dtype, found["x"].shape)
            assert bits(expected) == bits(found["x"])
            assert (calls[-1].bytes_wanted, calls[-1].bytes_read) == (expected.nbytes + 3, expected.nbytes + 3)


def test_rows_and_columns_of_pairs_count_logical_elements(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("F4", 4, 8)})
    whole = dict(reader.iter_weights([path]))["x"].view(torch.uint8)
    part = (TensorSlice(dim=0, start=1, stop=3), TensorSlice(dim=1, start=2, stop=6))
    ((_, got),) = reader.iter_weights([path], slices={"x": part})
    assert whole[1:3, 1:3].tolist() == got.view(torch.uint8).tolist()


def test_two_slices_of_one_dimension_are_refused_by_name(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("F32", 4, 6)})
    with pytest.raises(SliceError, match=r"two slices are of dimension 1: .*m\.safetensors, tensor 'x'"):
        next(iter(reader.iter_weights([path], slices={"x": (TensorSlice(dim=1), TensorSlice(dim=-1))})))


def test_a_slice_inside_a_byte_is_refused_before_the_first_tensor(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1), "x": tensor("F4", 4, 8)})
    with pytest.raises(SliceError, match="'x'"):
        next(iter(reader.iter_weights([path], slices={"x": TensorSlice(dim=1, start=1, stop=4)})))


def test_no_rows_of_half_a_byte_are_refused_before_the_first_tensor(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1), "x": tensor("F4", 4, 8)})
    part = (TensorSlice(dim=0, start=2, stop=2), TensorSlice(dim=1, start=1, stop=4))
    with pytest.raises(SliceError, match="'x'"):
        next(iter(reader.iter_weights([path], slices={"x": part})))


def test_a_scalar_has_no_dimension_to_slice(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("F32")})
    with pytest.raises(SliceError, match="'x'"):
        next(iter(reader.iter_weights([path], slices={"x": TensorSlice(dim=0)})))


def test_a_slice_that_cannot_be_is_refused_also_of_a_tensor_that_the_filter_leaves_out(
    reader: WeightReader, tmp_path: Path
) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1), "x": tensor("F32", 4, 6)})
    with pytest.raises(SliceError, match="'x'"):
        next(iter(reader.iter_weights([path], key_filter="a".__eq__, slices={"x": TensorSlice(dim=2)})))


def test_progress_of_a_slice_counts_the_bytes_of_the_slice(reader: WeightReader, tmp_path: Path) -> None:
    calls: list[ReadStats] = []
    slices = {"s1.t0": TensorSlice(dim=1, start=1, stop=3)}
    list(reader.iter_weights(write_shards(tmp_path, 1), slices=slices, on_progress=calls.append))
    assert (calls[-1].bytes_wanted, calls[-1].bytes_read) == (24 + 60, 24 + 60)
