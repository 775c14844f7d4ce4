# SPDX-License-Identifier: Apache-2.0
"""What parts of tensors are by the headers: bytes, shapes, and how a reader of one dimension comes to them."""

from __future__ import annotations

import math

import torch

from weight_readers import TensorMeta, TensorPart, TensorSlice
from weight_readers.slices import part_bounds, slices_of
from weight_readers.tensors import Kind
from weight_readers_loader.environment import Span


def plainest(part: TensorPart) -> TensorPart:
    """The same part. A tuple of one slice is that slice, which every reader of slices takes."""
    return part[0] if isinstance(part, tuple) and len(part) == 1 else part


def nbytes_of(meta: TensorMeta, part: TensorPart) -> int:
    """How many bytes of the file the part is."""
    count = math.prod(meta.shape)
    taken = math.prod(stop - start for start, stop in part_bounds(part, meta.shape))
    return meta.nbytes * taken // count if count else 0


def span_of_rows(kind: Kind, path: str, offset: int, part: TensorPart | None) -> Span:
    """The rows of the first dimension in which the part lies."""
    bounds = part_bounds(part, kind.shape) if part is not None else ()
    if not bounds or not kind.shape[0]:
        return Span(path, offset, offset + kind.nbytes)
    start, stop = (end * kind.nbytes // kind.shape[0] for end in bounds[0])
    return Span(path, offset + start, offset + stop)


def shape_of(kind: Kind, part: TensorPart | None) -> tuple[int, ...]:
    """The shape of the tensor to come; a slice counts logical elements, of which one stored one may hold several."""
    if part is None:
        return kind.stored_shape
    sizes = zip(part_bounds(part, kind.shape), kind.shape, kind.stored_shape, strict=True)
    return tuple((stop - start) * stored // size if size else 0 for (start, stop), size, stored in sizes)


def narrowest(part: TensorPart, kind: Kind) -> TensorSlice:
    """The slice of ``part`` that alone gives the least of the tensor, or that of a packed dimension where there is one.

    Between rows a tensor can be cut in memory; between elements of which several are stored as one, it cannot.
    """

    def order(each: TensorSlice) -> tuple[bool, float]:
        dim, start, stop = each.resolve(kind.shape)
        return kind.shape[dim] == kind.stored_shape[dim], (stop - start) / kind.shape[dim] if kind.shape[dim] else 1.0

    return min(slices_of(part), key=order)


def cut_further(tensor: torch.Tensor, kind: Kind, part: TensorPart, read: TensorPart) -> torch.Tensor:
    """The part, of what `narrowest` said was to be read: a view."""
    for each in slices_of(part):
        if each != read:
            dim, start, stop = each.resolve(kind.shape)
            tensor = tensor.narrow(dim, start, stop - start)
    return tensor
