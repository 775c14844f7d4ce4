# SPDX-License-Identifier: Apache-2.0
"""From bytes of a file to a torch tensor: as a view of a mapping, or read into memory of its own."""

from __future__ import annotations

import torch

from weight_readers_files import Wanted
from weight_readers_files.mapping import memory_at
from weight_readers_files.source import Source


def empty(wanted: Wanted) -> torch.Tensor:
    """A tensor without elements; ``torch.frombuffer`` refuses those (safetensors/safetensors#442)."""
    # The device is said, because engines make their models under another default.
    return torch.empty(wanted.shape, dtype=wanted.dtype, device="cpu")


def view(wanted: Wanted, mapped: memoryview, base: int) -> torch.Tensor:
    """The tensor in a mapping that begins at ``base`` of the file: strided where an inner dimension is cut."""
    count = (wanted.end - wanted.begin) // wanted.dtype.itemsize
    flat = torch.frombuffer(mapped, dtype=wanted.dtype, count=count, offset=wanted.begin - base)
    if wanted.strides is None:
        return flat.view(wanted.shape)
    return flat.as_strided(wanted.shape, wanted.strides)


def read(wanted: Wanted, source: Source) -> torch.Tensor:
    """The tensor, read into fresh memory: owned, contiguous and aligned."""
    raw = _allocate(wanted, source)
    source.read_each(memory_at(raw.data_ptr(), wanted.nbytes), wanted.ranges, tensor=wanted.name)
    return raw.view(wanted.dtype).view(wanted.shape)


def _allocate(wanted: Wanted, source: Source) -> torch.Tensor:
    try:
        return torch.empty(wanted.nbytes, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:  # torch has no narrower type for it
        raise MemoryError(f"no {wanted.nbytes} bytes of memory for tensor {wanted.name!r} of {source.path}") from error
