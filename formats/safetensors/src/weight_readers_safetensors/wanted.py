# SPDX-License-Identifier: Apache-2.0
"""What is wanted of which safetensors file, and where its bytes lie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from weight_readers import CheckpointError, CheckpointMeta, CheckpointProblems, TensorMeta, TensorSlice
from weight_readers.reader import KeyFilter
from weight_readers_files import FilePlan, State, Wanted, check_slices, chosen_by_file, file_plans
from weight_readers_safetensors.dtypes import torch_dtype
from weight_readers_safetensors.ranges import sliced_shape, stored_shape, wanted_ranges

if TYPE_CHECKING:
    import torch


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
    check_slices(meta, slices)
    chosen = chosen_by_file(meta, key_filter)
    dtypes = _dtypes(chain.from_iterable(chosen.values()))

    def cut(tensor: TensorMeta) -> Wanted:
        dtype, name = dtypes[tensor.source_dtype], tensor.name
        if name in slices:
            return _part(tensor, dtype, slices[name])
        begin, nbytes = tensor.offset, tensor.nbytes
        return Wanted(name, dtype, tensor.stored_shape, None, ((begin, nbytes),), begin, begin + nbytes, nbytes)

    return file_plans(meta, states, chosen, cut)


def _part(meta: TensorMeta, dtype: torch.dtype, part: TensorSlice) -> Wanted:
    begin = meta.offset
    ranges = wanted_ranges(meta, part)
    shape = stored_shape(meta.source_dtype, sliced_shape(meta, part))
    strides = _strides(meta.stored_shape) if len(ranges) > 1 else None
    end = sum(ranges[-1]) if ranges else begin
    begin = ranges[0][0] if ranges else begin
    return Wanted(meta.name, dtype, shape, strides, ranges, begin, end, sum(length for _, length in ranges))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _dtypes(tensors: Iterable[TensorMeta]) -> dict[str, torch.dtype]:
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
