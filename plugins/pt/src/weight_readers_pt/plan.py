# SPDX-License-Identifier: Apache-2.0
"""What is wanted of which file: any part of any strided tensor, as bytes to map and strides over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from weight_readers import CheckpointError, CheckpointProblems, TensorMeta, TensorPart, UnsupportedDtypeError
from weight_readers.reader import KeyFilter
from weight_readers.slices import Bounds, bounds_in, stretches
from weight_readers_files import (
    FilePlan,
    Range,
    State,
    Stripes,
    Wanted,
    check_slices,
    chosen_by_file,
    coalesce,
    file_plans,
    lies_everywhere,
    nbytes_of,
)
from weight_readers_pt.meta import PtMeta
from weight_readers_pt.records import Dense


def _strided(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """How the bytes that were read are looked at, where they are more than the elements in order."""
    return tensor.as_strided(shape, strides)


class Plan(NamedTuple):
    """``files`` are what is read; ``strided`` says of some tensors how they lie in what was read."""

    files: list[FilePlan]
    strided: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]


def plan(
    meta: PtMeta, states: Mapping[str, State], key_filter: KeyFilter | None, slices: Mapping[str, TensorPart]
) -> Plan:
    """One plan for each file of which anything is wanted.

    Raises MissingTensorError for a slice of a tensor that is not there, SliceError for a dimension it lacks, and
    UnsupportedDtypeError for what the installed torch cannot hold.
    """
    check_slices(meta, slices, several=True)
    chosen = chosen_by_file(meta, key_filter)
    _require_dtypes([tensor for tensors in chosen.values() for tensor in tensors])
    strided: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}

    def cut(tensor: TensorMeta) -> Wanted:
        dense = meta.dense[tensor.name]
        bounds = bounds_in(tensor, slices.get(tensor.name, ()))
        part = dense.part(bounds)
        begin = tensor.offset + (part.offset - dense.offset) * dense.itemsize
        rows = _rows(dense, part, bounds, begin)
        if part.span and not part.is_contiguous and rows is None:
            strided[tensor.name] = partial(_strided, shape=part.shape, strides=part.strides)
        return _wanted(tensor.name, part, begin, rows)

    sizes = {file.path: file.nbytes - file.header_bytes for file in meta.files}
    files = [_in_order(each, sizes[each.path]) for each in file_plans(meta, states, chosen, cut)]
    return Plan(files, strided)


def _rows(whole: Dense, part: Dense, bounds: Bounds, begin: int) -> Sequence[Range] | None:
    """The stretches that hold a part of a tensor that lies in order, where they are several; else None."""
    if part.is_contiguous or not whole.is_contiguous:
        return None
    length, begins = stretches(whole.shape, bounds)
    return Stripes.of(begins, length, scale=whole.itemsize, offset=begin - begins[0] * whole.itemsize)


def _wanted(name: str, part: Dense, begin: int, rows: Sequence[Range] | None) -> Wanted:
    dtype: torch.dtype = getattr(torch, part.dtype)
    if not part.span:
        return Wanted(name, dtype, part.shape, None, (), begin, begin, 0)
    end = begin + part.span
    if rows is not None:
        return Wanted(name, dtype, part.shape, part.strides, rows, begin, end, nbytes_of(rows))
    shape = part.shape if part.is_contiguous else (part.span // part.itemsize,)
    return Wanted(name, dtype, shape, None, ((begin, part.span),), begin, end, part.span)


def _in_order(file: FilePlan, data_bytes: int) -> FilePlan:
    """Tensors may share bytes and be sliced apart: what is read is ordered and counted by bytes, not by tensors."""
    wanted = sorted(file.wanted, key=lambda each: (each.begin, each.end))
    covered = sum(length for _, length in coalesce(part for each in wanted for part in each.ranges))
    return file._replace(wanted=wanted, partial=covered < data_bytes and not lies_everywhere(wanted))


def _require_dtypes(tensors: list[TensorMeta]) -> None:
    problems: dict[str, CheckpointError] = {}
    for tensor in tensors:
        if tensor.dtype not in problems and not isinstance(getattr(torch, tensor.dtype, None), torch.dtype):
            problems[tensor.dtype] = UnsupportedDtypeError(
                f"torch {torch.__version__} has no dtype {tensor.dtype}",
                path=tensor.file,
                tensor=tensor.name,
                expected=f"torch.{tensor.dtype}",
                found=f"torch {torch.__version__}",
                fix="Run `pip install --upgrade torch`",
            )
    CheckpointProblems.raise_any(problems.values(), path=tensors[0].file if tensors else "")
