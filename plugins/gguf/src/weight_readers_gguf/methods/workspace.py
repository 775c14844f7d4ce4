# SPDX-License-Identifier: Apache-2.0
"""Memory for dense weights while they are multiplied with: bounded, and used again by the next layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

MIB = 1 << 20
DEFAULT_BYTES = 256 * MIB
SMALLEST, LARGEST = 1 << 12, 1 << 40
# A GEMM works on tiles: windows of odd heights would leave a ragged one each.
_TILE = 64


class Workspace:
    """At most ``limit`` bytes of dense weight at a time and per thread that computes.

    In host memory, where a fresh allocation is a page fault for each 4 KiB, buffers are kept and lent again. On
    devices torch's allocator does that already, in the order of each stream and within the pool of a graph being
    captured, which buffers of our own would break. Safe from several threads: a buffer is lent to one at a time.
    """

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self.limit = _whole(limit)
        self._free: deque[torch.Tensor] = deque()

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles of a model take the setting along, not the memory.
        return type(self), (self.limit,)

    @property
    def held(self) -> int:
        """Bytes of the buffers that wait to be lent."""
        return sum(buffer.nbytes for buffer in tuple(self._free))

    def rows(self, columns: int, dtype: torch.dtype) -> int:
        """How many rows of ``columns`` elements fit; whole tiles of a GEMM where there is room for one."""
        fit = max(1, self.limit // max(1, columns * dtype.itemsize))
        return fit if fit < _TILE else fit // _TILE * _TILE

    @contextmanager
    def lend(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Iterator[torch.Tensor]:
        """A contiguous ``[rows, columns]`` of ``dtype`` with whatever values, the caller's own until the block ends."""
        if device.type != "cpu":
            yield torch.empty(rows, columns, dtype=dtype, device=device)
            return
        # The list is that of the beginning: what comes back after a release is not kept.
        free = self._free
        buffer = _buffer(free, rows * columns * dtype.itemsize)
        try:
            yield buffer[: rows * columns * dtype.itemsize].view(dtype).view(rows, columns)
        finally:
            free.append(buffer)

    def release(self) -> None:
        """Give the memory back; buffers in use are given back when their user is done."""
        self._free = deque()


def _buffer(free: deque[torch.Tensor], nbytes: int) -> torch.Tensor:
    try:
        buffer = free.pop()
    except IndexError:
        buffer = None
    if buffer is not None and buffer.nbytes >= nbytes:
        return buffer
    del buffer  # before the larger one is allocated
    # Memory made in inference mode could not be written to outside of it.
    with torch.inference_mode(False):
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def _whole(limit: object) -> int:
    subject = "option 'workspace_bytes' of quant method 'gguf'"
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"{subject} must be a whole number from {SMALLEST} to {LARGEST}, not {limit!r}")
    if not SMALLEST <= limit <= LARGEST:
        raise ValueError(f"{subject} must be from {SMALLEST} to {LARGEST}, not {limit}")
    return limit
