# SPDX-License-Identifier: Apache-2.0
"""Shapes and byte ranges: which bytes of the file hold a tensor, or a slice of one."""

from __future__ import annotations

from collections.abc import Sequence

from weight_readers import SliceError, TensorMeta, TensorPart
from weight_readers.slices import Bounds, bounds_in_units, part_words, stretches
from weight_readers_files import Range, Stripes
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


def sliced_shape(meta: TensorMeta, part: TensorPart | None) -> tuple[int, ...]:
    """The *logical* shape of ``part`` of the tensor; None is the whole of it.

    `stored_shape` makes it the shape of the torch tensor. Raises what `wanted_ranges` does for dimensions.
    """
    if part is None:
        return meta.shape
    return tuple(stop - start for start, stop in _bounds(meta, part))


def wanted_ranges(meta: TensorMeta, part: TensorPart | None = None) -> Sequence[Range]:
    """The byte ranges of the file that hold ``part`` of the tensor, in file order, adjacent ones joined.

    Read one after the other into one buffer they are the contiguous bytes of the tensor, indexed so in torch.
    ``part`` counts logical elements; None is the whole tensor. An empty part has no ranges.

    Raises SliceError for a dimension the tensor lacks, for two slices of one, and where a part of a sub-byte dtype does
    not begin and end at a whole byte.
    """
    if part is None:
        return [(meta.offset, meta.nbytes)] if meta.nbytes else []
    length, begins = stretches(meta.shape, _bounds(meta, part))
    if not begins:
        return []
    dtype = dtype_of(meta.source_dtype, path=meta.file, tensor=meta.name)
    size, rest = divmod(dtype.bits, 8)
    if not rest:
        return Stripes.of(begins, length, scale=size, offset=meta.offset)
    nbytes = _bytes(length, dtype, meta, part)
    return [(meta.offset + _bytes(begin, dtype, meta, part), nbytes) for begin in begins]


def _bounds(meta: TensorMeta, part: TensorPart) -> Bounds:
    dtype = dtype_of(meta.source_dtype, path=meta.file, tensor=meta.name)
    return bounds_in_units(meta, part, dtype.packing, "byte")


def _bytes(elements: int, dtype: Dtype, meta: TensorMeta, part: TensorPart) -> int:
    whole, rest = divmod(elements * dtype.bits, 8)
    if rest:
        raise SliceError(
            f"slice {part_words(part)} cuts {dtype.name} inside a byte",
            path=meta.file,
            tensor=meta.name,
            expected=f"whole bytes, which hold {dtype.unit} elements",
            found=f"{elements} elements of shape {list(meta.shape)}",
            fix=f"Slice multiples of {dtype.unit} elements, and cut what comes",
        )
    return whole
