# SPDX-License-Identifier: Apache-2.0
"""Filters, slices and progress: the part that was asked for, counted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from weight_readers import (
    CheckpointError,
    Feature,
    MissingTensorError,
    ReadStats,
    TensorPart,
    TensorSlice,
    WeightReader,
)
from weight_readers_testkit.subject import EVERYDAY, Subject
from weight_readers_testkit.tensors import Contents, bits, contents, expected, same, stored

SHAPE = (4, 6, 8)
BOUNDS = [(None, None), (0, 2), (1, 3), (2, None), (None, -1), (-2, None), (-99, 99), (3, 2), (9, 12), (1, 1)]
REFUSALS = (TypeError, ValueError, NotImplementedError)
Cases = Iterator[tuple[TensorPart, tuple[slice, ...]]]
"""Slices of a tensor of `SHAPE`, and what they are in torch."""


class PartTests(Subject):
    def test_a_filter_decides_or_is_refused(self, tmp_path: Path) -> None:
        """`iter_weights`: ask `key_filter` once of every name and yield what it takes; without `Feature.KEY_FILTER`
        that, or a ValueError."""
        reader, shards = self.make(), self.shards(tmp_path, 3)
        asked: list[str] = []

        def wanted(name: str) -> bool:
            asked.append(name)
            return name.endswith("t1")

        got = _honoured(reader, Feature.KEY_FILTER, shards, key_filter=wanted)
        if got is None:
            return
        names = [name for number in (1, 2, 3) for name in self.shard(number)]
        assert [name for name in names if name.endswith("t1")] == sorted(got)
        assert names == sorted(asked)

    def test_a_filter_skips_tensors_before_they_are_read(self, tmp_path: Path) -> None:
        """`iter_weights`: plan what is read by `key_filter` from the header alone (`chosen_by_file`); read-ahead of the
        kernel counts (`Source(exact=True)`). Or leave out `Feature.KEY_FILTER`."""
        reader = self.need(Feature.KEY_FILTER)
        path, tensors = self.bulky(tmp_path)
        got: Contents = {}
        reader.read_meta([path])
        touched = self.counted(
            self.path(tmp_path),
            lambda: got.update(contents(reader.iter_weights([path], key_filter="small".__eq__))),
        )
        same(expected({"small": tensors["small"]}), got)
        assert touched < self.bulk // 4, f"{touched} bytes were read for {len(tensors['small'].data)}"

    def test_an_error_in_the_filter_is_the_callers(self, tmp_path: Path) -> None:
        """`iter_weights`: let errors of `key_filter` pass."""
        reader = self.need(Feature.KEY_FILTER)
        with pytest.raises(ZeroDivisionError):
            list(reader.iter_weights(self.shards(tmp_path, 1), key_filter=lambda name: bool(1 // 0)))

    def test_slices_agree_with_indexing_in_torch_or_are_refused(self, tmp_path: Path) -> None:
        """`iter_weights`: cut by `slices.part_bounds`, which takes bounds as Python does; without `Feature.SLICES`
        raise a ValueError for any."""
        self._slices_agree(tmp_path, Feature.SLICES, _slices())

    def test_slices_of_several_dimensions_agree_with_indexing_in_torch_or_are_refused(self, tmp_path: Path) -> None:
        """`iter_weights`: what all slices of the tuple have in common; without `Feature.MULTI_SLICES` raise a TypeError
        for a tuple (`check_slices`)."""
        self._slices_agree(tmp_path, Feature.MULTI_SLICES, _several())

    def _slices_agree(self, folder: Path, feature: Feature, cases: Cases) -> None:
        reader = self.make()
        path = self.file(folder, {"before": stored(EVERYDAY, 2), "x": stored(EVERYDAY, *SHAPE)})
        whole = dict(reader.iter_weights([path]))["x"]
        for part, index in cases:
            got = _honoured(reader, feature, [path], slices={"x": part})
            if got is None:
                return
            right = whole[index]
            assert (tuple(right.shape), bits(right)) == got["x"][1:], part
            assert got["before"][1] == (2,)

    def test_slices_of_several_dimensions_read_what_they_have_in_common(self, tmp_path: Path) -> None:
        """`iter_weights`: a range for each stretch of neighbours (`slices.stretches`); or leave out
        `Feature.MULTI_SLICES`."""
        reader = self.need(Feature.MULTI_SLICES)
        # Rows of many pages: a page that is read for a part of it counts whole.
        shape = (16, self.bulk // 64)
        path = self.file(tmp_path, {"x": stored(EVERYDAY, *shape)})
        quarter = (TensorSlice(dim=0, stop=shape[0] // 4), TensorSlice(dim=1, stop=shape[1] // 4))
        reader.read_meta([path])
        touched = self.counted(
            self.path(tmp_path), lambda: contents(reader.iter_weights([path], slices={"x": quarter}))
        )
        assert touched < self.bulk // 8, f"{touched} bytes were read for {self.bulk // 16}"

    def test_a_slice_reads_its_own_part(self, tmp_path: Path) -> None:
        """`iter_weights`: read the ranges of the slice, not the tensor; or leave out `Feature.SLICES`."""
        reader = self.need(Feature.SLICES)
        path, tensors = self.bulky(tmp_path)
        rows = sum(each.shape[0] for each in tensors.values())
        slices = {name: TensorSlice(dim=0, start=0, stop=each.shape[0] // 16) for name, each in tensors.items()}
        reader.read_meta([path])
        touched = self.counted(self.path(tmp_path), lambda: contents(reader.iter_weights([path], slices=slices)))
        assert touched < self.bulk // 2, f"{touched} bytes were read for one row in 16 of {rows}"

    def test_a_slice_that_cannot_be_is_refused_before_the_first_tensor(self, tmp_path: Path) -> None:
        """`iter_weights`: check all of `slices` before the first tensor (`check_slices`)."""
        reader, shards = self.need(Feature.SLICES), self.shards(tmp_path, 2)
        wrong: list[tuple[Any, Mapping[str, Any]]] = [
            (MissingTensorError, {"s1.t0": TensorSlice(dim=0), "nobody": TensorSlice(dim=0)}),
            (IndexError, {"s2.t1": TensorSlice(dim=2)}),
            (IndexError, {"s2.t1": TensorSlice(dim=-3)}),
            ((TypeError, ValueError, CheckpointError), {"s1.t0": (0, 1, 2)}),
            ((TypeError, ValueError), {"s2.t1": (TensorSlice(dim=0, stop=1), TensorSlice(dim=-2, stop=1))}),
        ]
        for kind, slices in wrong:
            with pytest.raises(kind):
                next(iter(reader.iter_weights(shards, slices=slices)))

    def test_progress_adds_up_and_ends_at_the_bytes_wanted(self, tmp_path: Path) -> None:
        """`iter_weights`: `bytes_wanted` is the same from the first `on_progress` on; `tensors` and `bytes_read` reach
        the totals with the last."""
        reader, shards = self.make(), self.shards(tmp_path, 3)
        calls: list[ReadStats] = []
        count = len(list(reader.iter_weights(shards, on_progress=calls.append)))
        nbytes = 6 * 60
        assert {nbytes} == {each.bytes_wanted for each in calls}
        assert sorted(each.bytes_read for each in calls) == [each.bytes_read for each in calls]
        assert (count, nbytes) == (calls[-1].tensors, calls[-1].bytes_read)

    def test_progress_of_a_part_counts_what_is_wanted(self, tmp_path: Path) -> None:
        """`iter_weights`: `bytes_wanted` is what `key_filter` and `slices` leave."""
        reader, shards = self.need(Feature.KEY_FILTER), self.shards(tmp_path, 3)
        calls: list[ReadStats] = []
        list(reader.iter_weights(shards, key_filter="s2.t1".__eq__, on_progress=calls.append))
        assert (calls[-1].tensors, calls[-1].bytes_wanted, calls[-1].bytes_read) == (1, 60, 60)


def _slices() -> Cases:
    """Of each dimension."""
    for dim in (0, 1, 2, -1, -3):
        for start, stop in BOUNDS:
            index = [slice(None)] * 3
            index[dim] = slice(start, stop)
            yield TensorSlice(dim=dim, start=start, stop=stop), tuple(index)


def _several() -> Cases:
    """Of two and three dimensions at once."""
    for dims in ((0, 1), (2, 0), (1, 2), (0, 1, 2), (-1, -3)):
        for first in range(0, len(BOUNDS), 2):
            bounds = {dim: BOUNDS[(first + place) % len(BOUNDS)] for place, dim in enumerate(dims)}
            index = [slice(None)] * 3
            for dim, ends in bounds.items():
                index[dim] = slice(*ends)
            yield (
                tuple(TensorSlice(dim=dim, start=start, stop=stop) for dim, (start, stop) in bounds.items()),
                tuple(index),
            )


def _honoured(reader: WeightReader, feature: Feature, files: list[str], **argument: Any) -> Contents | None:
    """What a reader makes of an argument; None where it refuses one whose feature it does not declare."""
    call: Callable[[], Contents] = lambda: contents(reader.iter_weights(files, **argument))  # noqa: E731
    if feature in reader.info.features:
        return call()
    try:
        return call()
    except REFUSALS:
        return None
