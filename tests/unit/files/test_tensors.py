# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.files import write_tensors
from support.tensors import BITS, bits, tensor

from weight_readers import TensorSlice
from weight_readers_files import Wanted, tensors
from weight_readers_files.source import Source
from weight_readers_safetensors import plan, read_headers


def planned(path: Path, part: TensorSlice | None = None) -> Wanted:
    slices = {} if part is None else {"x": part}
    ((_, _, (wanted,), _),) = plan(read_headers([path]), {}, "x".__eq__, slices)
    return wanted


def both_ways(path: Path, wanted: Wanted) -> list[torch.Tensor]:
    """The tensor as a view of a mapping, and read."""
    with Source(str(path)) as source:
        return [tensors.view(wanted, *source.map(wanted.begin, wanted.end)), tensors.read(wanted, source)]


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_a_view_and_a_copy_are_equal(tmp_path: Path, dtype: str) -> None:
    written = tensor(dtype, 3, 4)
    path = write_tensors(tmp_path / "m.safetensors", {"x": written})
    for got in both_ways(path, planned(path)):
        assert (written[2], True) == (bits(got), got.is_contiguous())


@pytest.mark.parametrize("dim", range(3))
def test_a_slice_maps_and_reads_from_its_own_beginning_to_its_own_end(tmp_path: Path, dim: int) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("F32", 4, 5, 6)})
    whole = both_ways(path, planned(path))[0].view(torch.int32)
    wanted = planned(path, TensorSlice(dim=dim, start=1, stop=3))
    expected = whole.narrow(dim, 1, 2)
    view, copy = both_ways(path, wanted)
    assert expected.tolist() == view.view(torch.int32).tolist() == copy.view(torch.int32).tolist()
    assert (expected.stride(), True) == (view.stride(), copy.is_contiguous())
    # Nothing of the tensor before the first and behind the last element that was asked for.
    span = (expected.shape[0] - 1) * 30 + (expected.shape[1] - 1) * 6 + expected.shape[2]
    assert 4 * span == wanted.end - wanted.begin == view.untyped_storage().nbytes()


def test_a_copy_begins_at_an_aligned_address(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"odd": tensor("U8", 3), "x": tensor("F64", 2)})
    wanted = planned(path)
    assert not wanted.is_aligned
    with Source(str(path)) as source:
        assert tensors.read(wanted, source).data_ptr() % 8 == 0


def test_memory_that_is_not_there_is_said_with_tensor_and_file(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("U8", 1)})
    wanted = planned(path)._replace(nbytes=2**60)
    with Source(str(path)) as source, pytest.raises(MemoryError, match=r"'x' of .*m\.safetensors"):
        tensors.read(wanted, source)


def test_a_tensor_without_elements_has_its_shape_and_dtype(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": ("BF16", [0, 7], b"")})
    got = tensors.empty(planned(path))
    assert ((0, 7), torch.bfloat16) == (got.shape, got.dtype)
