# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.files import entry, floats, write_safetensors, write_tensors

from weight_readers import CheckpointProblems, MissingTensorError, TensorSlice, UnsupportedDtypeError
from weight_readers_files import FilePlan
from weight_readers_safetensors import HeaderCache, plan


def planned(*paths: Path, key_filter=None, slices=None) -> list[FilePlan]:  # type: ignore[no-untyped-def]
    known = HeaderCache().read(paths)
    return plan(known.meta, known.states, key_filter, slices or {})


def two_by_three(path: Path) -> Path:
    return write_tensors(path, {"w": ("F32", [2, 3], floats(*range(6))), "b": ("I16", [2], b"\1\0\2\0")})


def test_everything_is_wanted_by_default_in_one_piece_each(tmp_path: Path) -> None:
    path = two_by_three(tmp_path / "a.safetensors")
    (only,) = planned(path)
    begin = path.stat().st_size - 28
    assert (only.path, only.nbytes, only.partial) == (str(path), 28, False)
    assert [(w.name, w.dtype, w.shape, w.strides) for w in only.wanted] == [
        ("w", torch.float32, (2, 3), None),
        ("b", torch.int16, (2,), None),
    ]
    assert [list(w.ranges) for w in only.wanted] == [[(begin, 24)], [(begin + 24, 4)]]


def test_tensors_come_by_offset_and_an_empty_one_before_the_one_that_shares_its_offset(tmp_path: Path) -> None:
    header = {"z": entry("F32", [1], 4, 8), "a": entry("F32", [1], 0, 4), "none": entry("F32", [0], 4, 4)}
    path = write_safetensors(tmp_path / "a.safetensors", header, floats(1, 2))
    (only,) = planned(path)
    assert [w.name for w in only.wanted] == ["a", "none", "z"]


def test_a_filter_leaves_tensors_and_whole_files_out(tmp_path: Path) -> None:
    first = two_by_three(tmp_path / "a.safetensors")
    second = write_tensors(tmp_path / "b.safetensors", {"v": ("F32", [1], floats(1))})
    (only,) = planned(first, second, key_filter=lambda name: name == "b")
    assert (only.path, [w.name for w in only.wanted], only.partial) == (str(first), ["b"], True)


def test_a_column_slice_has_a_range_per_row_and_the_strides_of_the_whole(tmp_path: Path) -> None:
    path = two_by_three(tmp_path / "a.safetensors")
    (only,) = planned(path, slices={"w": TensorSlice(dim=1, start=1, stop=3)})
    begin = path.stat().st_size - 28
    wanted = only.wanted[0]
    assert list(wanted.ranges) == [(begin + 4, 8), (begin + 16, 8)]
    assert (wanted.shape, wanted.strides, wanted.nbytes) == ((2, 2), (3, 1), 16)
    assert (wanted.begin, wanted.end) == (begin + 4, begin + 24)


def test_a_slice_of_a_tensor_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    path = two_by_three(tmp_path / "a.safetensors")
    with pytest.raises(MissingTensorError, match="'x'"):
        planned(path, slices={"x": TensorSlice(dim=0, start=0, stop=1)})
    with pytest.raises(TypeError, match="'w' must be a TensorSlice"):
        planned(path, slices={"w": slice(0, 1)})


def test_what_torch_cannot_hold_is_refused_unless_it_is_not_wanted(tmp_path: Path) -> None:
    sixes = {"a": ("F6_E2M3", [4], bytes(3)), "b": ("F6_E3M2", [4], bytes(3)), "c": ("U8", [1], b"\1")}
    path = write_tensors(tmp_path / "a.safetensors", sixes)
    with pytest.raises(CheckpointProblems) as caught:
        planned(path)
    assert [type(p) for p in caught.value.problems] == [UnsupportedDtypeError, UnsupportedDtypeError]
    (only,) = planned(path, key_filter="c".__eq__)
    assert [w.name for w in only.wanted] == ["c"]


@pytest.mark.parametrize(("start", "aligned"), [(3, False), (4, True)])
def test_alignment_is_that_of_the_file(tmp_path: Path, start: int, aligned: bool) -> None:
    path = write_tensors(
        tmp_path / "a.safetensors", {"pad": ("U8", [start], bytes(start)), "w": ("F32", [1], floats(1))}
    )
    (only,) = planned(path)
    assert only.wanted[1].is_aligned is aligned
