# SPDX-License-Identifier: Apache-2.0
"""What is wanted of which file: decided once from the headers, before the first byte of a tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from weight_readers import CheckpointMeta, FileMeta, MissingTensorError, TensorMeta, TensorPart, TensorSlice
from weight_readers.reader import KeyFilter
from weight_readers.slices import bounds_in
from weight_readers_files.ranges import Range, Stripes, pages_of
from weight_readers_files.state import State
from weight_readers_files.wanted import Wanted, WholeTensors, bytes_of

_AHEAD_BYTES = 64 << 20
"""Beside so many bytes it is little what the kernel reads ahead behind them."""


class FilePlan(NamedTuple):
    """What is wanted of one file, by offset; ``partial`` where not all of it is to be brought in for that.

    Columns of every matrix may lie in every page: storage is read as for the whole file then, and less of it copied.
    """

    path: str
    state: State | None
    wanted: Sequence[Wanted]
    partial: bool

    @property
    def nbytes(self) -> int:
        return bytes_of(self.wanted)

    def pages(self) -> list[Range]:
        """What storage is to bring in for the ranges wanted, see `pages_of`."""
        return pages_of(each.ranges for each in self.wanted)


def bytes_wanted(plans: Iterable[FilePlan]) -> int:
    return sum(plan.nbytes for plan in plans)


def chosen_by_file(meta: CheckpointMeta, key_filter: KeyFilter | None) -> dict[str, list[TensorMeta]]:
    """The tensors that the filter takes, by path; every file has an entry. The filter sees each name once."""
    chosen: dict[str, list[TensorMeta]] = {file.path: [] for file in meta.files}
    for name, tensor in meta.items():
        if key_filter is None or key_filter(name):
            chosen[tensor.file].append(tensor)
    return chosen


def file_plan(file: FileMeta, states: Mapping[str, State], wanted: Sequence[Wanted]) -> FilePlan:
    """The plan for ``wanted`` of a file, which is by offset."""
    partial = bytes_of(wanted) < file.nbytes - file.header_bytes and not lies_everywhere(wanted)
    return FilePlan(file.path, states.get(file.path), wanted, partial)


def lies_everywhere(wanted: Sequence[Wanted], *, short_gap: int = 0) -> bool:
    """Whether stripes of tensors leave hardly anything out of a long part of a file, gaps of ``short_gap`` aside."""
    if isinstance(wanted, WholeTensors) or not any(isinstance(each.ranges, Stripes) for each in wanted):
        return False
    span = max(each.end for each in wanted) - wanted[0].begin
    pages = pages_of((each.ranges for each in wanted), short_gap=short_gap)
    return span >= _AHEAD_BYTES and sum(length for _, length in pages) >= 0.95 * span


def file_plans(
    meta: CheckpointMeta,
    states: Mapping[str, State],
    chosen: Mapping[str, Sequence[TensorMeta]],
    cut: Callable[[TensorMeta], Wanted],
) -> list[FilePlan]:
    """One plan for each file of which anything is wanted; ``cut`` says where a tensor's wanted bytes lie."""
    plans = []
    for file in meta.files:
        # An empty tensor before the one that shares its offset, so that the last one ends last.
        tensors = sorted(chosen[file.path], key=attrgetter("offset", "nbytes"))
        plans.append(file_plan(file, states, [*map(cut, tensors)]))
    return [each for each in plans if each.wanted]


def check_slices(meta: CheckpointMeta, slices: Mapping[str, TensorPart], *, several: bool = False) -> None:
    """Raise MissingTensorError for a slice of a tensor that is not there, TypeError for what is no slice.

    A tuple of slices is none, unless the reader takes ``several`` (`Feature.MULTI_SLICES`). Raises SliceError for a
    part of a dimension that is not there.
    """
    if not isinstance(slices, Mapping):
        raise TypeError(f"slices must be a mapping of tensor names to TensorSlice, not {type(slices).__name__}")
    for name, part in slices.items():
        if name not in meta:
            what, path = "a slice was asked of a tensor that is not there", meta.files[0].path
            raise MissingTensorError(what, path=path, tensor=name)
        if not _is_part(part, several=several):
            kind = "a TensorSlice or a tuple of them" if several else "a TensorSlice"
            raise TypeError(f"the slice of tensor {name!r} must be {kind}, not {part!r}")
        bounds_in(meta[name], part)


def _is_part(part: object, *, several: bool) -> bool:
    if isinstance(part, tuple):
        return several and all(isinstance(each, TensorSlice) for each in part)
    return isinstance(part, TensorSlice)
