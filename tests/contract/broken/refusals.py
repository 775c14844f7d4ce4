# SPDX-License-Identifier: Apache-2.0
"""Readers that take, or hide, what they should refuse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from contract.broken.bases import Pairs
from contract.broken.registry import breaks

from weight_readers import CheckpointError, CheckpointMeta, CheckpointProblems, DuplicateTensorError, SliceError
from weight_readers_mmap.reader import MappedReader


@breaks("a_broken_file_has_one_error_from_every_entrance_before_the_first_tensor")
class _FindsOutLater(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        try:
            yield from super().iter_weights(files, **arguments)
        except (CheckpointProblems, DuplicateTensorError, SliceError):
            raise
        except CheckpointError:
            yield from super().iter_weights(files[:1], **arguments)
            raise


@breaks("a_filter_does_not_hide_a_broken_file")
class _OpensWhatItNeeds(MappedReader):
    def iter_weights(self, files: Any, *, key_filter: Any = None, **arguments: Any) -> Pairs:
        if key_filter is not None:
            files = [file for file in files if self.is_sound(file)]
        return super().iter_weights(files, key_filter=key_filter, **arguments)

    def is_sound(self, file: Any) -> bool:
        try:
            self.read_meta([file])
        except CheckpointError:
            return False
        return True


@breaks("all_broken_files_are_named_at_once")
class _OneByOneOnly(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        try:
            return super().iter_weights(files, **arguments)
        except CheckpointProblems as error:
            raise error.problems[0] from None

    def read_meta(self, files: Any) -> CheckpointMeta:
        try:
            return super().read_meta(files)
        except CheckpointProblems as error:
            raise error.problems[0] from None


@breaks("paths_may_be_text_or_path_objects")
class _TextOnly(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        if any(isinstance(file, Path) for file in files):
            raise TypeError("paths must be text")
        return super().iter_weights(files, **arguments)


@breaks("what_is_no_list_of_files_is_refused")
class _TakesOnePath(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        return super().iter_weights(_as_list(files), **arguments)

    def read_meta(self, files: Any) -> CheckpointMeta:
        return super().read_meta(_as_list(files))


def _as_list(files: Any) -> Any:
    return [files] if isinstance(files, (str, Path)) else files


@breaks("the_same_file_twice_is_refused")
class _TakesEachOnce(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        return super().iter_weights(_each_once(files), **arguments)

    def read_meta(self, files: Any) -> CheckpointMeta:
        return super().read_meta(_each_once(files))


def _each_once(files: Any) -> Any:
    if isinstance(files, list) and all(os.path.exists(file) for file in files):
        return list({os.path.realpath(file): file for file in files}.values())
    return files


@breaks("a_name_in_two_files_is_refused")
class _LastOneWins(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        try:
            return super().iter_weights(files, **arguments)
        except DuplicateTensorError as error:
            if error.tensor != "x":
                raise
            return super().iter_weights(files[-1:], **arguments)


@breaks("errors_survive_the_way_to_another_process")
class _KeepsFrames(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        with _Kept():
            return super().iter_weights(files, **arguments)

    def read_meta(self, files: Any) -> CheckpointMeta:
        with _Kept():
            return super().read_meta(files)


class _Kept:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            error.found_by = lambda: None
