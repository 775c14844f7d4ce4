# SPDX-License-Identifier: Apache-2.0
"""Reading into the caller's tensors: what is refused before any byte is written, and what is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from weight_readers import (
    CheckpointError,
    Feature,
    ReadStats,
    TargetMismatchError,
    TensorPart,
    TensorSlice,
)
from weight_readers_testkit.filling import FillsTargets
from weight_readers_testkit.parts import REFUSALS
from weight_readers_testkit.subject import EVERYDAY, Subject
from weight_readers_testkit.tensors import Stored, bits, blank, noise, same, stored


class IntoTests(Subject):
    def _reader(self) -> FillsTargets:
        return cast(FillsTargets, self.need(Feature.READ_INTO))

    def _pair(self, folder: Path) -> tuple[str, dict[str, Stored]]:
        tensors = {name: stored(EVERYDAY, 4, 6, seed=name) for name in "ab"}
        return self.file(folder, tensors), tensors

    def test_targets_of_every_dtype_hold_every_byte(self, tmp_path: Path) -> None:
        """`read_into`: the bytes of every dtype, of scalars, of nothing, and beyond the first chunk."""
        reader = self._reader()
        tensors = {dtype: stored(dtype, 4, 6, seed=dtype) for dtype in self.held()}
        tensors |= {"scalar": stored(EVERYDAY)} if self.scalars else {}
        tensors |= {"empty": Stored(EVERYDAY, (3, 0), b"")} if self.empty else {}
        tensors["large"] = Stored(EVERYDAY, (9 << 18, 1), noise(9 << 20))
        targets = {name: blank(each) for name, each in tensors.items()}
        reader.read_into([self.file(tmp_path, tensors)], targets)
        same({name: each.data for name, each in tensors.items()}, {name: bits(t) for name, t in targets.items()})

    def test_what_was_read_into_targets_is_counted(self, tmp_path: Path) -> None:
        """`read_into`: `bytes_wanted` is the same from the first `on_progress` on, `bytes_read` never falls, and the
        last call has what is returned."""
        reader = self._reader()
        path, tensors = self._pair(tmp_path)
        calls: list[ReadStats] = []
        stats = reader.read_into([path], {n: blank(t) for n, t in tensors.items()}, on_progress=calls.append)
        assert ReadStats(tensors=2, bytes_wanted=192, bytes_read=192) == stats == calls[-1]
        assert sorted(each.bytes_read for each in calls) == [each.bytes_read for each in calls]

    def test_targets_that_do_not_fit_are_refused_before_any_write(self, tmp_path: Path) -> None:
        """`read_into`: a TargetMismatchError for all names, shapes and dtypes before the first write
        (`targets.checked_plans`)."""
        reader = self._reader()
        path, _ = self._pair(tmp_path)
        for wrong in ({"b": torch.zeros(6, 4)}, {"b": torch.zeros(4, 6, dtype=torch.float64)}, {"x": torch.zeros(1)}):
            target = torch.zeros(4, 6)
            with pytest.raises(TargetMismatchError):
                reader.read_into([path], {"a": target, **wrong})
            assert int(target.count_nonzero()) == 0

    def test_what_has_no_memory_of_its_own_is_refused(self, tmp_path: Path) -> None:
        """`read_into`: a TypeError for no tensor, meta tensors and expanded ones (`targets.checked_plans`)."""
        reader = self._reader()
        path, _ = self._pair(tmp_path)
        wrong: list[Any] = [None, [0.0] * 24, torch.empty(4, 6, device="meta"), torch.zeros(4, 1).expand(4, 6)]
        for target in wrong:
            with pytest.raises(TypeError):
                reader.read_into([path], {"a": target})

    def test_two_targets_in_one_memory_are_refused(self, tmp_path: Path) -> None:
        """`read_into`: a TargetMismatchError where targets share memory (`targets.checked_plans`)."""
        reader = self._reader()
        path, _ = self._pair(tmp_path)
        tied, base = torch.zeros(4, 6), torch.zeros(40)
        pairs: list[Mapping[str, torch.Tensor]] = [
            {"a": tied, "b": tied.detach()},
            {"a": base[:24].view(4, 6), "b": base[10:34].view(4, 6)},
        ]
        for targets in pairs:
            with pytest.raises(TargetMismatchError):
                reader.read_into([path], targets)

    def test_strided_targets_are_filled_and_nothing_beside_them(self, tmp_path: Path) -> None:
        """`read_into`: copy to a target that is not contiguous (`targets.blocks`); its memory holds other bytes than
        the file."""
        reader = self._reader()
        path, tensors = self._pair(tmp_path)
        memory, turned = torch.zeros(4, 10), torch.zeros(6, 4)
        reader.read_into([path], {"a": memory[:, 2:8], "b": turned.t()})
        assert (tensors["a"].data, tensors["b"].data) == (bits(memory[:, 2:8]), bits(turned.t()))
        assert int(memory[:, :2].count_nonzero() + memory[:, 8:].count_nonzero()) == 0

    def test_slices_fill_their_targets(self, tmp_path: Path) -> None:
        """`read_into`: honour `slices` as `iter_weights` does; what is not declared of `Feature.SLICES` and
        `Feature.MULTI_SLICES` is refused with a ValueError or TypeError before any write."""
        reader = self._reader()
        path, tensors = self._pair(tmp_path)
        whole = torch.frombuffer(bytearray(tensors["a"].data), dtype=torch.float32).view(4, 6)
        rows, columns = TensorSlice(dim=0, start=1, stop=3), TensorSlice(dim=1, stop=2)
        cases: list[tuple[Feature, TensorPart, torch.Tensor]] = [
            (Feature.SLICES, rows, whole[1:3]),
            (Feature.SLICES, columns, whole[:, :2]),
            (Feature.MULTI_SLICES, (rows, columns), whole[1:3, :2]),
        ]
        for feature, part, right in cases:
            target = torch.zeros(right.shape)
            try:
                reader.read_into([path], {"a": target}, slices={"a": part})
            except REFUSALS:
                if feature in reader.info.features:
                    raise
                right = torch.zeros(right.shape)
            assert bits(right) == bits(target), part

    def test_only_the_named_targets_are_filled(self, tmp_path: Path) -> None:
        """`read_into`: read exactly the tensors that have a target, of whatever file."""
        reader, shards = self._reader(), self.shards(tmp_path, 3)
        targets = {name: torch.zeros(3, 5) for name in ("s3.t1", "s1.t0")}
        assert reader.read_into(shards, targets).tensors == 2
        right = {**self.shard(1), **self.shard(3)}
        same({name: right[name].data for name in targets}, {name: bits(t) for name, t in targets.items()})

    def test_a_damaged_file_is_an_error_before_anything_is_written(self, tmp_path: Path) -> None:
        """`read_into`: check the headers of all files before the first write."""
        reader, shards = self._reader(), self.shards(tmp_path, 2)
        damaged = self.path(tmp_path, "model-2")
        damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
        target = torch.zeros(3, 5)
        with pytest.raises(CheckpointError):
            reader.read_into(shards, {"s1.t0": target})
        assert int(target.count_nonzero()) == 0
