# SPDX-License-Identifier: Apache-2.0
"""Files that change between two reads and while they are read: noticed, or without any effect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weight_readers import CheckpointError, Feature, FileChangedError
from weight_readers_testkit.elsewhere import Elsewhere
from weight_readers_testkit.faults import POINTER
from weight_readers_testkit.filling import CHANGES, LOOKED_AT, MOMENTS, TOLD, Filled, Filling, fill_while_it_changes
from weight_readers_testkit.subject import EVERYDAY, Subject
from weight_readers_testkit.tensors import Stored, contents, expected, same, stored

NAMES = tuple("abcd")
SHAPE = (64, 1024)
"""Larger than what buffered files read ahead."""
BEFORE, AFTER = ({name: stored(EVERYDAY, *SHAPE, seed=(age, name)) for name in NAMES} for age in ("before", "after"))


class ChangeTests(Subject):
    def test_a_file_that_was_mended_or_replaced_is_read_anew(self, tmp_path: Path) -> None:
        """`read_meta`, `iter_weights`: keep what a header says only as long as the file's size and time are the same,
        as `HeaderCache` does."""
        reader, path = self.make(), self.path(tmp_path)
        file = self.reference(path)
        path.write_bytes(POINTER)
        with pytest.raises(CheckpointError):
            reader.read_meta([file])
        for name in ("first", "second"):
            tensors = {name: stored(EVERYDAY, 2, seed=name)}
            self.write(tmp_path / "new", tensors)
            (tmp_path / "new").replace(path)
            same(expected(tensors), contents(reader.iter_weights([file])))

    def test_what_is_written_to_a_file_meanwhile_is_an_error_or_has_no_part_in_the_tensors(
        self, tmp_path: Path
    ) -> None:
        """`iter_weights`: compare the file with its state when the header was read, after the bytes of each tensor and
        before it is yielded (`Pass`, or `Source.check`)."""
        shards = self.shards(tmp_path, 3)
        weights = self.make().iter_weights(shards)
        kept = [next(weights)]
        with self.path(tmp_path).open("r+b") as file:
            last = os.fstat(file.fileno()).st_size - 1
            file.seek(last)
            byte = file.read(1)
            file.seek(last)
            file.write(bytes([byte[0] ^ 255]))
        right = expected({**self.shard(1), **self.shard(2), **self.shard(3)})
        try:
            same(right, contents([*kept, *weights]))
        except FileChangedError:
            return

    @pytest.mark.parametrize("moment", MOMENTS)
    @pytest.mark.parametrize("change", CHANGES)
    def test_what_is_done_to_a_file_meanwhile_is_an_error_or_has_no_part_in_targets(
        self, tmp_path: Path, elsewhere: Elsewhere, change: str, moment: str
    ) -> None:
        """`read_into`: open the file once, in the state its header was read in, and check that after each tensor
        (`Source(path, state)` and its `check`)."""
        self.need(Feature.READ_INTO)
        filled = elsewhere.run(fill_while_it_changes, self._filling(tmp_path, change, moment))
        if filled.error is not None:
            assert filled.changed or not filled.touched, f"no FileChangedError, after the first write: {filled.error}"
            return
        same(_data(self._sound(filled, change, moment)), filled.contents)

    def test_an_error_in_the_midst_names_the_targets_that_were_written_to(
        self, tmp_path: Path, elsewhere: Elsewhere
    ) -> None:
        """`read_into`: set `error.written` of a CheckpointError to the names of all targets that bytes may have
        reached, and raise it again."""
        self.need(Feature.READ_INTO)
        fillings = [elsewhere.run(fill_while_it_changes, self._filling(tmp_path, each, TOLD)) for each in CHANGES]
        failed = [filled for filled in fillings if filled.error is not None and filled.touched]
        if not failed:
            pytest.skip("all was read before any of it was told of")
        for filled in failed:
            assert filled.touched <= set(filled.written) <= set(NAMES), filled.error

    def _filling(self, folder: Path, change: str, moment: str) -> Filling:
        path, other = self.path(folder), self.path(folder, "other")
        self.write(other, AFTER)
        file = self.file(folder, BEFORE)
        # The clocks of file systems tick some 100 times a second: what is done next has to show.
        os.utime(path, (0, 0))
        return Filling(self.case([file]), NAMES, SHAPE, str(path), str(other), change, moment)

    @staticmethod
    def _sound(filled: Filled, change: str, moment: str) -> dict[str, Stored]:
        """What the targets may hold: all of the old file, or of the new one where nothing was read before it."""
        first = filled.contents[NAMES[0]]
        anew = moment == LOOKED_AT and change != "cut" and first == AFTER[NAMES[0]].data
        return AFTER if anew else BEFORE


def _data(tensors: dict[str, Stored]) -> dict[str, bytes]:
    return {name: each.data for name, each in tensors.items()}
