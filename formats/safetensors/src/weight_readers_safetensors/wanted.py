# SPDX-License-Identifier: Apache-2.0
"""What is wanted of which safetensors file, and where its bytes lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from weight_readers import CheckpointError, CheckpointMeta, CheckpointProblems, TensorMeta, TensorPart
from weight_readers.reader import KeyFilter
from weight_readers.slices import c_strides
from weight_readers.tensors import TensorTable
from weight_readers_files import FilePlan, State, Wanted, WholeTensors, by_offset, check_slices, file_plan
from weight_readers_safetensors.dtypes import torch_dtype
from weight_readers_safetensors.ranges import sliced_shape, stored_shape, wanted_ranges

if TYPE_CHECKING:
    import torch


def plan(
    meta: CheckpointMeta,
    states: Mapping[str, State],
    key_filter: KeyFilter | None,
    slices: Mapping[str, TensorPart],
) -> list[FilePlan]:
    """One plan for each file of which anything is wanted, in the order of ``meta.files``.

    Raises MissingTensorError for a slice of a tensor that is not there, UnsupportedDtypeError for what torch
    cannot hold, and SliceError for a slice that its tensor cannot be cut by.
    """
    check_slices(meta, slices, several=True)
    chosen = (meta if key_filter is None else meta.where(key_filter)).by_file
    tables = [(file, chosen[file.path]) for file in meta.files if file.path in chosen]
    dtypes = _dtypes([table for _, table in tables])
    return [file_plan(file, states, _wanted(by_offset(table), dtypes, slices)) for file, table in tables]


def _wanted(
    table: TensorTable, dtypes: Mapping[str, torch.dtype], slices: Mapping[str, TensorPart]
) -> Sequence[Wanted]:
    whole = WholeTensors(table, dtypes)
    if slices.keys().isdisjoint(table.names):
        return whole
    return [
        _part(tensor, dtypes[tensor.source_dtype], slices[tensor.name]) if tensor.name in slices else each
        for each, tensor in zip(whole, table.values(), strict=True)
    ]


def _part(meta: TensorMeta, dtype: torch.dtype, part: TensorPart) -> Wanted:
    ranges = wanted_ranges(meta, part)
    shape = stored_shape(meta.source_dtype, sliced_shape(meta, part))
    return Wanted.part(meta, dtype, shape, ranges, c_strides(meta.stored_shape))


def _dtypes(tables: Collection[TensorTable]) -> dict[str, torch.dtype]:
    """The torch dtypes in use. Raises for what torch cannot hold, naming every tensor of such a dtype."""
    used = {kind.source_dtype for table in tables for kind, _ in table.kind_counts}
    try:
        return {word: torch_dtype(word, path="") for word in used}
    except CheckpointError:
        problems = [*_unsupported(chain.from_iterable(table.values() for table in tables))]
        CheckpointProblems.raise_any(problems, path=problems[0].path)
        raise


def _unsupported(tensors: Iterable[TensorMeta]) -> Iterator[CheckpointError]:
    for meta in tensors:
        try:
            torch_dtype(meta.source_dtype, path=meta.file, tensor=meta.name)
        except CheckpointError as error:
            yield error
