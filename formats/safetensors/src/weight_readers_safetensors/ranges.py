# SPDX-License-Identifier: Apache-2.0
"""Shapes and byte ranges: which bytes of the file hold a tensor, or a slice of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weight_readers.errors import SliceError
from weight_readers.reader import TensorSlice
from weight_readers.tensors import TensorMeta
from weight_readers_files import Range
from weight_readers_safetensors.dtypes import DTYPES, Dtype, dtype_of


def stored_shape(source_dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the tensor that torch makes of a logical ``shape``: half the last dimension for ``F4``.

    Raises ValueError where the last dimension does not divide into torch's elements, and KeyError for a dtype
    safetensors does not have.
    """
    packing = DTYPES[source_dtype].packing
    if packing == 1:
        return tuple(shape)
    if not shape or shape[-1] % packing:
        raise ValueError(f"{source_dtype} needs a last dimension divisible by {packing}, not shape {list(shape)}")
    return (*shape[:-1], shape[-1] // packing)


def sliced_shape(meta: TensorMeta, part: TensorSlice | None) -> tuple[int, ...]:
    """The *logical* shape of ``part`` of the tensor; None is the whole of it.

    `stored_shape` makes it the shape of the torch tensor. Raises IndexError for a dimension the tensor lacks.
    """
    if part is None:
        return meta.shape
    dim, start, stop = _resolve(meta, part)
    return (*meta.shape[:dim], stop - start, *meta.shape[dim + 1 :])


def wanted_ranges(meta: TensorMeta, part: TensorSlice | None = None) -> list[Range]:
    """The byte ranges of the file that hold ``part`` of the tensor, in file order, adjacent ones joined.

    Read one after the other into one buffer they are the contiguous bytes of ``tensor.narrow(dim, start, n)``.
    ``part`` counts logical elements; None is the whole tensor. An empty part has no ranges.

    Raises IndexError for a dimension the tensor lacks, and SliceError where a part of a sub-byte dtype does not
    begin and end at a whole byte.
    """
    if part is None:
        return [(meta.offset, meta.nbytes)] if meta.nbytes else []
    dim, start, stop = _resolve(meta, part)
    inner = math.prod(meta.shape[dim + 1 :])
    outer = math.prod(meta.shape[:dim])
    if (stop - start) * inner * outer == 0:
        return []
    dtype = dtype_of(meta.source_dtype, path=meta.file, tensor=meta.name)
    step, first, length = (_bytes(count * inner, dtype, meta, part) for count in (meta.shape[dim], start, stop - start))
    if length == step:
        return [(meta.offset, meta.nbytes)]
    return [(meta.offset + row * step + first, length) for row in range(outer)]


def _resolve(meta: TensorMeta, part: TensorSlice) -> tuple[int, int, int]:
    try:
        return part.resolve(meta.shape)
    except IndexError as error:
        raise IndexError(f"{error}: tensor {meta.name!r} in {meta.file}") from None


def _bytes(elements: int, dtype: Dtype, meta: TensorMeta, part: TensorSlice) -> int:
    whole, rest = divmod(elements * dtype.bits, 8)
    if rest:
        raise SliceError(
            f"slice {part.start}:{part.stop} of dimension {part.dim} cuts {dtype.name} inside a byte",
            path=meta.file,
            tensor=meta.name,
            expected=f"whole bytes, which hold {dtype.unit} elements",
            found=f"{elements} elements of shape {list(meta.shape)}",
        )
    return whole
