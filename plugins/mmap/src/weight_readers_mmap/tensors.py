# SPDX-License-Identifier: Apache-2.0
"""From bytes of a file to a torch tensor: as a view of a mapping, or read into memory of its own."""

from __future__ import annotations

import ctypes
import mmap

import torch

from weight_readers import TensorMeta, TensorSlice
from weight_readers_mmap.source import Source
from weight_readers_safetensors import sliced_shape, torch_dtype, wanted_ranges


def dtype_of(meta: TensorMeta) -> torch.dtype:
    """Raises UnsupportedDtypeError where the installed torch does not have the dtype."""
    dtype = torch_dtype(meta.source_dtype, path=meta.file, tensor=meta.name)
    assert isinstance(dtype, torch.dtype)  # noqa: S101 - typed Any at its source, which imports no torch
    return dtype


def empty(meta: TensorMeta, part: TensorSlice | None) -> torch.Tensor:
    """A tensor without elements; ``torch.frombuffer`` refuses those (safetensors/safetensors#442)."""
    return torch.empty(_stored_shape(meta, part), dtype=dtype_of(meta))


def is_aligned(meta: TensorMeta) -> bool:
    """Whether the tensor begins at a multiple of its element size. Mappings begin at a page, so the file decides."""
    return meta.offset % dtype_of(meta).itemsize == 0


def view(meta: TensorMeta, mapped: mmap.mmap, offset: int, part: TensorSlice | None) -> torch.Tensor:
    """The tensor at ``offset`` of a mapping, or ``part`` of it: strided where ``part`` cuts an inner dimension."""
    dtype = dtype_of(meta)
    flat = torch.frombuffer(mapped, dtype=dtype, count=meta.nbytes // dtype.itemsize, offset=offset)
    tensor = flat.view(meta.stored_shape)
    if part is None:
        return tensor
    dim, start, _ = part.resolve(meta.shape)
    per_unit = meta.shape[dim] // meta.stored_shape[dim] if meta.stored_shape[dim] else 1
    return tensor.narrow(dim, start // per_unit, _stored_shape(meta, part)[dim])


def read(meta: TensorMeta, source: Source, part: TensorSlice | None) -> torch.Tensor:
    """The tensor, or ``part`` of it, read into fresh memory: owned, contiguous and aligned."""
    shape = _stored_shape(meta, part)
    ranges = wanted_ranges(meta, part)
    total = sum(length for _, length in ranges)
    raw = torch.empty(total, dtype=torch.uint8)
    if total:
        memory = memoryview((ctypes.c_char * total).from_address(raw.data_ptr())).cast("B")
        done = 0
        for offset, length in ranges:
            source.read_into(memory[done : done + length], offset, tensor=meta.name)
            done += length
    return raw.view(dtype_of(meta)).view(shape)


def _stored_shape(meta: TensorMeta, part: TensorSlice | None) -> tuple[int, ...]:
    return meta.stored_shape if part is None else tuple(sliced_shape(meta, part))
