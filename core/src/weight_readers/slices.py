# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors: what is asked for, what that is of a shape, and where its elements lie. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from weight_readers import _schema
from weight_readers._checkpoint_errors import SliceError
from weight_readers._schema import Schema
from weight_readers.tensors import TensorMeta

Bounds = tuple[tuple[int, int], ...]
"""``(start, stop)`` of every dimension, with ``0 <= start <= stop <= size``."""


@dataclass(frozen=True, kw_only=True)
class TensorSlice(Schema):
    """The part ``start:stop`` of one dimension, in elements of the logical shape.

    Normalised as Python slices are: negative numbers count from the end, None is open, and what lies past the
    end is cut off. Numbers are whatever Python takes as an index (numpy's too), but no truth values, and kept as int.
    """

    dim: int = field(metadata={"coerce": _schema.index})
    start: int | None = field(default=None, metadata={"coerce": _schema.optional(_schema.index)})
    stop: int | None = field(default=None, metadata={"coerce": _schema.optional(_schema.index)})

    def __str__(self) -> str:
        ends = ":".join("" if end is None else str(end) for end in (self.start, self.stop))
        return f"{ends} of dimension {self.dim}"

    def resolve(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """``(dim, start, stop)`` with ``0 <= start <= stop <= shape[dim]``. Raises IndexError for a bad ``dim``."""
        if not -len(shape) <= self.dim < len(shape):
            raise IndexError(f"dimension {self.dim} is out of range for shape {list(shape)}")
        dim = self.dim % len(shape)
        start, stop, _ = slice(self.start, self.stop).indices(shape[dim])
        return dim, start, max(start, stop)


TensorPart = TensorSlice | tuple[TensorSlice, ...]
"""One slice, or what slices of several dimensions have in common, at most one of each."""


def slices_of(part: TensorPart) -> tuple[TensorSlice, ...]:
    """The slices of a part, of which a single one is one."""
    return part if isinstance(part, tuple) else (part,)


def part_words(part: TensorPart) -> str:
    """The part as messages say it: ``2:4 of dimension 0 and :8 of dimension 1``."""
    return " and ".join(map(str, slices_of(part))) or "all of it"


def part_bounds(part: TensorPart, shape: Sequence[int]) -> Bounds:
    """What the part is of a tensor of that logical shape.

    Raises IndexError for a dimension that it lacks, and ValueError for two slices of one dimension.
    """
    bounds = [(0, size) for size in shape]
    seen: set[int] = set()
    for each in slices_of(part):
        dim, start, stop = each.resolve(shape)
        if dim in seen:
            raise ValueError(f"two slices are of dimension {dim}: {part_words(part)}")
        seen.add(dim)
        bounds[dim] = (start, stop)
    return tuple(bounds)


def bounds_in(tensor: TensorMeta, part: TensorPart) -> Bounds:
    """`part_bounds` of the tensor's logical shape, or SliceError with the tensor and its file."""
    try:
        return part_bounds(part, tensor.shape)
    except (IndexError, ValueError) as error:
        raise SliceError(
            str(error),
            path=tensor.file,
            tensor=tensor.name,
            expected=f"at most one slice for each of {len(tensor.shape)} dimensions",
            found=part_words(part),
        ) from None


def bounds_in_units(tensor: TensorMeta, part: TensorPart, unit: int, kind: str, *, fix: str | None = None) -> Bounds:
    """`bounds_in` a tensor that stores ``unit`` elements of its last dimension as one ``kind`` (a byte, a block).

    Raises SliceError where the part begins or ends inside one. Nothing of the last dimension is nothing wherever it
    lies; of a part that is empty by another dimension the columns still have to be whole units, or it had no shape.
    """
    bounds = bounds_in(tensor, part)
    if unit == 1 or not bounds:
        return bounds
    start, stop = bounds[-1]
    if start == stop:
        return (*bounds[:-1], (0, 0))
    if start % unit or stop % unit:
        around = f"{start // unit * unit}:{-(-stop // unit) * unit}"
        raise SliceError(
            f"slice {part_words(part)} cuts {tensor.source_dtype} inside a {kind} of {unit} elements",
            path=tensor.file,
            tensor=tensor.name,
            expected=f"multiples of {unit}: {around} holds it",
            found=f"{start}:{stop} of {tensor.shape[-1]}",
            fix=fix or f"Slice {around} of dimension {len(bounds) - 1}, and cut what comes",
        )
    return bounds


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements lie from one index of a dimension to the next, in C order."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def stretches(shape: Sequence[int], bounds: Bounds) -> tuple[int, Sequence[int]]:
    """The stretches in which a part lies in memory or in a file: their common length, and where each begins.

    Both count elements, of a tensor whose elements lie in C order. Stretches come in that order and are apart from each
    other: one for all of a part of the first dimension, one for each row of a part of a matrix. An empty part has none.
    Where they begin at equal distances, which is so unless two dimensions are cut that have others before or between
    them, they are a `range`: there may be millions.
    """
    if any(start == stop for start, stop in bounds):
        return 0, ()
    strides = c_strides(shape)
    inner = _innermost_cut(shape, bounds)
    if inner is None:
        return math.prod(shape), range(1)
    first, last = bounds[inner]
    begins: Sequence[int] = range(first * strides[inner], first * strides[inner] + 1)
    for (start, stop), stride in zip(reversed(bounds[:inner]), reversed(strides[:inner]), strict=True):
        begins = _repeated(begins, range(start * stride, stop * stride, stride))
    return (last - first) * strides[inner], begins


def stretch_count(shape: Sequence[int], bounds: Bounds) -> int:
    """How many those are."""
    if any(start == stop for start, stop in bounds):
        return 0
    inner = _innermost_cut(shape, bounds)
    return 1 if inner is None else math.prod(stop - start for start, stop in bounds[:inner])


def _innermost_cut(shape: Sequence[int], bounds: Bounds) -> int | None:
    """The last dimension that is not wanted as a whole: below it all lies together."""
    cut = [dim for dim, (size, each) in enumerate(zip(shape, bounds, strict=True)) if each != (0, size)]
    return cut[-1] if cut else None


def _repeated(begins: Sequence[int], shifts: range) -> Sequence[int]:
    """``begins`` again behind each of the ``shifts``."""
    if isinstance(begins, range):
        first = begins[0] + shifts[0]
        if len(shifts) == 1:
            return range(first, begins[-1] + shifts[0] + 1, begins.step)
        if len(begins) == 1:
            return range(first, begins[0] + shifts[-1] + 1, shifts.step)
        if shifts.step == len(begins) * begins.step:
            return range(first, begins[-1] + shifts[-1] + 1, begins.step)
    return [shift + begin for shift in shifts for begin in begins]
