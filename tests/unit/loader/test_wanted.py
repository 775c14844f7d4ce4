# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from weight_readers import Feature, TensorMeta, TensorPart, TensorSlice
from weight_readers_loader.wanted import Wanted


def meta(name: str, shape: tuple[int, ...], file: str = "f", dtype: str = "float32", nbytes: int = 96) -> TensorMeta:
    return TensorMeta(
        name=name, dtype=dtype, source_dtype="?", shape=shape, stored_shape=shape, nbytes=nbytes, file=file, offset=0
    )


TENSORS = {"a": meta("a", (4, 6)), "b": meta("b", (4, 6), "g", "bfloat16", 48)}


def test_everything_asks_for_no_feature() -> None:
    wanted = Wanted.of(TENSORS)
    assert wanted.key_filter is None
    assert wanted.needs() == {
        "needs": frozenset(),
        "dtypes": frozenset({"float32", "bfloat16"}),
        "bytes_wanted": 144,
        "largest_tensor": 96,
        "stretches": 0,
    }


def test_a_filter_is_asked_once_about_each_name_and_needs_a_reader_that_can_skip() -> None:
    asked: list[str] = []
    wanted = Wanted.of(TENSORS, lambda name: asked.append(name) or name == "b")
    assert (asked, list(wanted.tensors), wanted.nbytes) == (["a", "b"], ["b"], 48)
    assert wanted.needs()["needs"] == {Feature.KEY_FILTER}
    assert wanted.key_filter is not None
    assert [wanted.key_filter(name) for name in ("a", "b")] == [False, True]
    assert asked == ["a", "b"]


def test_files_that_hold_more_need_a_reader_that_can_skip() -> None:
    assert Wanted.of(TENSORS, restricted=True).needs()["needs"] == {Feature.KEY_FILTER}


@pytest.mark.parametrize(
    ("part", "nbytes", "stretches"),
    [
        (TensorSlice(dim=0, start=1, stop=3), 48, 1),
        (TensorSlice(dim=1, start=-1), 16, 4),
        (TensorSlice(dim=-1, start=2, stop=100), 64, 4),
        (TensorSlice(dim=0, start=3, stop=1), 0, 0),
        ((TensorSlice(dim=0, start=1, stop=3), TensorSlice(dim=1, stop=3)), 24, 2),
        ((TensorSlice(dim=1, start=1),), 80, 4),
    ],
)
def test_slices_count_with_their_bytes_and_stretches_and_need_a_reader_that_can_cut(
    part: TensorPart, nbytes: int, stretches: int
) -> None:
    wanted = Wanted.of(TENSORS, None, {"a": part})
    assert wanted.nbytes == nbytes + 48
    assert wanted.needs()["stretches"] == stretches
    assert wanted.needs()["needs"] == {Feature.SLICES}


def test_a_slice_of_an_empty_dimension_counts_nothing() -> None:
    assert Wanted.of({"e": meta("e", (0, 3), nbytes=0)}, None, {"e": TensorSlice(dim=0, start=0)}).nbytes == 0


def test_it_splits_into_the_parts_that_lie_in_each_group_of_files() -> None:
    part = TensorSlice(dim=0, start=0, stop=1)
    wanted = Wanted.of(TENSORS, None, {"a": part, "b": part})
    split = {files: (list(w.tensors), list(w.slices)) for files, w in wanted.split([("g", "h"), ("i",), ("f",)])}
    assert split == {("g", "h"): (["b"], ["b"]), ("f",): (["a"], ["a"])}


def test_a_slice_of_what_the_filter_declines_is_not_passed_on() -> None:
    part = TensorSlice(dim=0, start=0, stop=1)
    assert Wanted.of(TENSORS, lambda name: name == "b", {"a": part}).slices == {}
