# SPDX-License-Identifier: Apache-2.0
"""Memory to read into: fresh tensors, and the memory of any tensor as a writable buffer."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch

MAPPED_BYTES = 64 << 10
"""Tensors from this size on have a mapping of their own."""
HUGE_BYTES = 4 << 20
"""Mappings from this size on ask for huge pages, where those are wanted."""
_PYBUF_WRITE = 0x200


def fresh(shape: Sequence[int], dtype: torch.dtype, *, huge_pages: bool = False) -> torch.Tensor:
    """An uninitialised tensor of its own memory; a large one in a mapping, in ``huge_pages`` where there are any.

    malloc would take it from an arena of the reading thread, and keep much of what the consumer frees: several
    times the bytes in flight. Raises MemoryError.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        # The device is said, because engines make their models under another default.
        if nbytes < MAPPED_BYTES:
            return torch.empty(shape, dtype=dtype, device="cpu")
        storage = torch.frombuffer(_mapping(nbytes, huge_pages), dtype=torch.uint8).untyped_storage()
        return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
    except (RuntimeError, OSError) as error:
        raise MemoryError(str(error)) from error


def fresh_at(phase: int, nbytes: int) -> torch.Tensor:
    """``uint8 [nbytes]`` in a mapping of its own, ``phase`` bytes behind a page. Raises MemoryError."""
    try:
        storage = torch.frombuffer(_mapping(phase + nbytes, huge_pages=False), dtype=torch.uint8).untyped_storage()
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, phase, (nbytes,))  # type: ignore[call-overload, no-any-return]
    except (RuntimeError, OSError) as error:
        raise MemoryError(str(error)) from error


def shaped(memory: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """``uint8 [nbytes]`` as a tensor of ``dtype`` and ``shape`` in the same memory, and no view of another."""
    storage, begin = memory.untyped_storage(), memory.storage_offset() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, begin, shape)  # type: ignore[call-overload, no-any-return]


def _mapping(nbytes: int, huge_pages: bool) -> mmap.mmap:
    mapping = private(nbytes)
    if huge_pages and nbytes >= HUGE_BYTES:
        # Advice for the whole of it: for a part, the kernel would split the mapping, and their number is limited.
        with suppress(OSError, AttributeError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def private(nbytes: int) -> mmap.mmap:
    """Memory that begins at a page, as direct reads need it."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def buffer_at(address: int, nbytes: int) -> memoryview:
    """Memory as a writable buffer. It does not keep its owner alive: whoever writes to it has to.

    Not through a ctypes array, which would be a new Python type for each size.
    """
    buffer: memoryview = _from_memory()(address, nbytes, _PYBUF_WRITE)
    return buffer


def copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes without the GIL, which an assignment to a memoryview would hold."""
    ctypes.memmove(_address(target), _address(source), len(target))


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if len(buffer) else 0


@cache
def _from_memory() -> Any:
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    return prototype(("PyMemoryView_FromMemory", ctypes.pythonapi))
