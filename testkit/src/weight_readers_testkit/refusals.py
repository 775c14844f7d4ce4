# SPDX-License-Identifier: Apache-2.0
"""Files and arguments that are wrong: the same error from every entrance, before the first tensor."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from weight_readers import (
    CheckpointError,
    CheckpointProblems,
    DuplicateTensorError,
    LfsPointerError,
    TruncatedFileError,
    WeightReader,
)
from weight_readers_testkit.faults import ANY_FORMAT, OF_FILE_SYSTEMS, POINTER, Fault, cut
from weight_readers_testkit.subject import EVERYDAY, LOCAL, Subject
from weight_readers_testkit.tensors import contents, stored


class RefusalTests(Subject):
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "fault" in metafunc.fixturenames:
            faults = self.corpus()
            metafunc.parametrize("fault", faults.values(), ids=list(faults))

    def corpus(self) -> Mapping[str, Fault | str]:
        """All files that the reader has to refuse, and the reasons why some of the kit's own are none."""
        sound: Callable[[Path], object] = lambda path: self.write(path, self.shard(2))  # noqa: E731
        own: dict[str, Fault] = {
            **ANY_FORMAT,
            **(OF_FILE_SYSTEMS if self.scheme == LOCAL else {}),
            "one byte short": cut(sound, lambda size: size - 1, TruncatedFileError),
            "cut in half": cut(sound, lambda size: size // 2, TruncatedFileError),
            "seven bytes": cut(sound, lambda size: 7, TruncatedFileError),
        }
        given = self.faults()
        off = {name for name, fault in given.items() if isinstance(fault, str)}
        if strange := sorted(off - own.keys() - OF_FILE_SYSTEMS.keys()):
            raise ValueError(f"{type(self).__name__}.faults() switches off {strange}: the kit's own are {sorted(own)}")
        return {**own, **given}

    def _broken(self, folder: Path, fault: Fault | str) -> list[str]:
        """A sound shard, and a wrong one; the test is skipped where that is none."""
        if isinstance(fault, str):
            pytest.skip(fault)
        first, second = self.file(folder, self.shard(1)), self.path(folder, "model-2")
        fault.make(second)
        return [first, self.reference(second)]

    def test_a_broken_file_has_one_error_from_every_entrance_before_the_first_tensor(
        self, tmp_path: Path, fault: Fault
    ) -> None:
        """`read_meta` and `iter_weights`: check every header by the same code, before the first tensor; the error is of
        the fault's class, with `path`. Where the format cannot tell, `faults()` switches it off with a reason."""
        files, errors = self._broken(tmp_path, fault), []
        reader = self.make()
        with self.nothing_left_open():
            for enter in _entrances(reader):
                with pytest.raises(CheckpointError) as caught:
                    enter(files)
                errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
        assert (issubclass(errors[0][0], fault.error), files[1] in errors[0][1]) == (True, True), errors[0]

    def test_a_filter_does_not_hide_a_broken_file(self, tmp_path: Path) -> None:
        """`iter_weights`: check the headers of all files, also those of which nothing is wanted."""
        files = self._broken(tmp_path, self.corpus()["cut in half"])
        with pytest.raises((CheckpointError, TypeError, ValueError)):
            list(self.make().iter_weights(files, key_filter=lambda name: name.startswith("s1")))

    def test_all_broken_files_are_named_at_once(self, tmp_path: Path) -> None:
        """`read_meta`: collect the errors of all files, in their order, for `CheckpointProblems.raise_any`."""
        paths = [self.path(tmp_path, f"model-{number}") for number in (1, 2)]
        paths[0].write_bytes(POINTER)
        files = [self.reference(path) for path in paths]
        with pytest.raises(CheckpointProblems) as caught:
            next(iter(self.make().iter_weights(files)))
        assert files == [problem.path for problem in caught.value.problems]
        assert isinstance(caught.value.problems[0], LfsPointerError)

    def test_paths_may_be_text_or_path_objects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`read_meta` and `iter_weights`: take `os.fspath` of each; `FileMeta.path` is the path as it was given."""
        self.need_files("paths")
        shards, reader = self.shards(tmp_path, 2), self.make()
        monkeypatch.chdir(tmp_path)
        for spell in (str, Path, os.path.relpath):
            files: list[Any] = [spell(shard) for shard in shards]
            assert list(self.shard(1)) == list(contents(reader.iter_weights(files)))[:2]
            assert [os.fspath(file) for file in files] == [file.path for file in reader.read_meta(files).files]

    def test_what_is_no_list_of_files_is_refused(self, tmp_path: Path) -> None:
        """`read_meta` and `iter_weights`: a TypeError for a bare path, a ValueError for no files (`natural_order`)."""
        (shard,) = self.shards(tmp_path, 1)
        wrong: list[tuple[type[Exception], Any]] = [(TypeError, shard), (TypeError, Path(shard)), (ValueError, [])]
        for kind, files in wrong:
            for enter in _entrances(self.make()):
                with pytest.raises(kind):
                    enter(files)

    def test_the_same_file_twice_is_refused(self, tmp_path: Path) -> None:
        """`read_meta` and `iter_weights`: a CheckpointError for one file under two names (`HeaderCache`,
        `sets.shared`)."""
        (shard,) = self.shards(tmp_path, 1)
        again = [shard]
        if self.scheme == LOCAL:
            link = self.path(tmp_path, "link")
            link.symlink_to(shard)
            again.append(str(link))
        reader = self.make()
        for second in again:
            for enter in _entrances(reader):
                with pytest.raises(CheckpointError):
                    enter([shard, second])
                enter([shard])  # what the reader knows of it by now makes the next call no better

    def test_a_name_in_two_files_is_refused(self, tmp_path: Path) -> None:
        """`read_meta` and `iter_weights`: a DuplicateTensorError with the name and the second file (`sets.shared`)."""
        files = [self.file(tmp_path, {"x": stored(EVERYDAY, n)}, f"model-{n}") for n in (1, 2)]
        with pytest.raises(DuplicateTensorError) as caught:
            next(iter(self.make().iter_weights(files)))
        assert ("x", files[1]) == (caught.value.tensor, caught.value.path)

    def test_errors_survive_the_way_to_another_process(self, tmp_path: Path) -> None:
        """`CheckpointError`: what is set on an error can be pickled; a class of your own takes the arguments of its
        base."""
        files = self._broken(tmp_path, self.corpus()["one byte short"])
        with pytest.raises(CheckpointError) as caught:
            self.make().read_meta(files)
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made on the line itself
        assert (type(caught.value), str(caught.value)) == (type(again), str(again))


def _entrances(reader: WeightReader) -> tuple[Callable[[Any], object], ...]:
    return reader.read_meta, lambda files: next(iter(reader.iter_weights(files)))
