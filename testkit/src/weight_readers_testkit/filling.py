# SPDX-License-Identifier: Apache-2.0
"""Targets that are filled in a process of its own: while the file changes, or while its memory is looked at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, cast

import torch

from weight_readers import CheckpointError, FileChangedError, ReadsInto, WeightReader
from weight_readers_testkit.counters import Peak
from weight_readers_testkit.elsewhere import Case
from weight_readers_testkit.tensors import bits


class FillsTargets(WeightReader, ReadsInto, Protocol):
    """A reader that reads into targets."""


LOOKED_AT = "targets are looked at"
TOLD = "the first bytes are told of"
MOMENTS = (LOOKED_AT, TOLD)
"""When a file is changed: before its bytes are read, or as soon as some of them have been."""

CHANGES: Mapping[str, Callable[[str, str], object]] = {
    "rewritten": lambda path, other: shutil.copyfile(other, path),
    "cut": lambda path, other: os.truncate(path, os.path.getsize(path) // 2),
    "replaced": lambda path, other: os.replace(other, path),
}
"""What is done to the file at ``path``; ``other`` is a sound one of the same tensors with other values."""


class Filling(NamedTuple):
    """The targets, all of one float32 ``shape``, and the change of the file at ``path`` meanwhile: see `CHANGES`."""

    case: Case
    names: tuple[str, ...]
    shape: tuple[int, ...]
    path: str
    other: str
    change: str
    moment: str


class Filled(NamedTuple):
    """What the targets hold; ``error`` is the text of the CheckpointError, if any, and ``written`` what it names."""

    contents: dict[str, bytes]
    error: str | None = None
    changed: bool = False
    written: tuple[str, ...] = ()

    @property
    def touched(self) -> set[str]:
        """Targets that are not as they were: all zeros."""
        return {name for name, data in self.contents.items() if data.strip(b"\0")}


def fill_while_it_changes(filling: Filling) -> Filled:
    """Read into targets of zeros while the file is changed, once."""
    reader = cast(FillsTargets, filling.case.make())
    reader.read_meta(filling.case.files)
    targets = {name: torch.zeros(filling.shape) for name in filling.names}
    change = _Once(lambda: CHANGES[filling.change](filling.path, filling.other))
    try:
        if filling.moment == LOOKED_AT:
            reader.read_into(filling.case.files, _Watched(targets, change))
        else:
            reader.read_into(filling.case.files, targets, on_progress=lambda stats: change())
    except CheckpointError as error:
        return Filled(_contents(targets), str(error), isinstance(error, FileChangedError), tuple(error.written))
    return Filled(_contents(targets))


def _contents(targets: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: bits(target) for name, target in targets.items()}


def peak_while_filling(case: Case) -> int:
    """The most memory of its own that this process has more while it fills float32 targets it had before, in bytes."""
    reader = cast(FillsTargets, case.make())
    targets = {name: torch.ones(each.stored_shape) for name, each in reader.read_meta(case.files).items()}
    with Peak() as peak:
        reader.read_into(case.files, targets, on_progress=lambda stats: peak.look())
    return peak.nbytes


class _Once:
    def __init__(self, action: Callable[[], object]) -> None:
        self._action: Callable[[], object] | None = action

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class _Watched(Mapping[str, torch.Tensor]):
    """Targets that tell when somebody looks at them."""

    def __init__(self, targets: Mapping[str, torch.Tensor], looked: Callable[[], None]) -> None:
        self._targets = targets
        self._looked = looked

    def __getitem__(self, name: str) -> torch.Tensor:
        self._looked()
        return self._targets[name]

    def __iter__(self) -> Iterator[str]:
        self._looked()
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)
