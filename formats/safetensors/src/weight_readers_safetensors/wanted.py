# SPDX-License-Identifier: Apache-2.0
"""What is wanted of which file: decided once from the headers, before the first byte of a tensor is read."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from weight_readers import (
    CheckpointError,
    CheckpointMeta,
    CheckpointProblems,
    MissingTensorError,
    TensorMeta,
    TensorSlice,
)
from weight_readers.reader import KeyFilter
from weight_readers_safetensors.dtypes import torch_dtype
from weight_readers_safetensors.known import State
from weight_readers_safetensors.ranges import Range, coalesce, sliced_shape, stored_shape, wanted_ranges

_PAGE_BYTES = mmap.ALLOCATIONGRANULARITY


if TYPE_CHECKING:
    import torch


class Wanted(NamedTuple):
    """One tensor to hand out, or a part of one: ``dtype``, ``shape`` and ``strides`` are those of torch.

    ``ranges`` hold its bytes in file order, ``begin`` and ``end`` bound them. ``strides`` is None where the bytes
    lie in one piece.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    ranges: Sequence[Range]
    begin: int
    end: int
    nbytes: int

    @property
    def is_aligned(self) -> bool:
        """Whether it begins at a multiple of its element size. Mappings begin at a page, so the file decides."""
        return self.begin % self.dtype.itemsize == 0


class FilePlan(NamedTuple):
    """What is wanted of one file, by offset; ``partial`` where that is not all of it."""

    path: str
    state: State | None
    wanted: Sequence[Wanted]
    partial: bool

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.wanted)

    def pages(self) -> list[Range]:
        """The ranges wanted, joined where no page lies between them that could be left out."""
        return pages_of(self.wanted)


def pages_of(wanted: Sequence[Wanted]) -> list[Range]:
    return coalesce((part for each in wanted for part in each.ranges), gap=_PAGE_BYTES - 1)


def plan(
    meta: CheckpointMeta,
    states: Mapping[str, State],
    key_filter: KeyFilter | None,
    slices: Mapping[str, TensorSlice],
) -> list[FilePlan]:
    """One plan for each file of which anything is wanted, in the order of ``meta.files``.

    Raises MissingTensorError for a slice of a tensor that is not there, UnsupportedDtypeError for what torch
    cannot hold, and IndexError or ValueError for a slice that its tensor cannot be cut by.
    """
    _check_slices(meta, slices)
    by_file: dict[str, list[TensorMeta]] = {file.path: [] for file in meta.files}
    for name, tensor in meta.items():
        if key_filter is None or key_filter(name):
            by_file[tensor.file].append(tensor)
    dtypes = _dtypes(tensor for tensors in by_file.values() for tensor in tensors)
    plans = []
    for file in meta.files:
        # An empty tensor before the one that shares its offset, so that the last one ends last.
        tensors = sorted(by_file[file.path], key=attrgetter("offset", "nbytes"))
        wanted = [_wanted(each, dtypes[each.source_dtype], slices.get(each.name)) for each in tensors]
        partial = sum(each.nbytes for each in wanted) < file.nbytes - file.header_bytes
        plans.append(FilePlan(file.path, states.get(file.path), wanted, partial))
    return [each for each in plans if each.wanted]


def _wanted(meta: TensorMeta, dtype: torch.dtype, part: TensorSlice | None) -> Wanted:
    begin, nbytes = meta.offset, meta.nbytes
    if part is None:
        return Wanted(meta.name, dtype, meta.stored_shape, None, ((begin, nbytes),), begin, begin + nbytes, nbytes)
    ranges = wanted_ranges(meta, part)
    shape = stored_shape(meta.source_dtype, sliced_shape(meta, part))
    strides = _strides(meta.stored_shape) if len(ranges) > 1 else None
    end = sum(ranges[-1]) if ranges else begin
    begin = ranges[0][0] if ranges else begin
    return Wanted(meta.name, dtype, shape, strides, ranges, begin, end, sum(length for _, length in ranges))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _check_slices(meta: CheckpointMeta, slices: Mapping[str, TensorSlice]) -> None:
    for name, part in slices.items():
        if name not in meta:
            what, path = "a slice was asked of a tensor that is not there", meta.files[0].path
            raise MissingTensorError(what, path=path, tensor=name)
        if not isinstance(part, TensorSlice):
            raise TypeError(f"the slice of tensor {name!r} must be a TensorSlice, not {part!r}")


def _dtypes(tensors: Iterator[TensorMeta]) -> dict[str, torch.dtype]:
    """The torch dtypes in use. Raises for what torch cannot hold, naming every tensor of such a dtype."""
    found: dict[str, torch.dtype] = {}
    problems: list[CheckpointError] = []
    for meta in tensors:
        if meta.source_dtype in found:
            continue
        try:
            found[meta.source_dtype] = torch_dtype(meta.source_dtype, path=meta.file, tensor=meta.name)
        except CheckpointError as error:
            problems.append(error)
    if problems:
        CheckpointProblems.raise_any(problems, path=problems[0].path)
    return found
