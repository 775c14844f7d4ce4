# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a unit go: fresh memory, a tensor that exists, or a staging buffer on the way to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from weight_readers_threaded.memory import bytes_of, fresh


class Fresh:
    """A new tensor, the consumer's own."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, nbytes: int) -> None:
        self.cost = nbytes
        self._shape = shape
        self._dtype = dtype
        self._tensor: torch.Tensor | None = None

    def allocate(self) -> None:
        self._tensor = fresh(self._shape, self._dtype)

    def buffer(self) -> memoryview:
        assert self._tensor is not None  # noqa: S101 - the engine allocates before it reads
        return bytes_of(self._tensor)

    def deliver(self) -> None:
        pass

    def take(self) -> torch.Tensor:
        """Hand the tensor over, and hold it no longer."""
        if self._tensor is None:  # without elements there is no request that would have allocated it
            self.allocate()
        tensor, self._tensor = self._tensor, None
        assert tensor is not None  # noqa: S101 - just allocated
        return tensor


class Existing:
    """A contiguous tensor of the caller's, in host memory: written directly."""

    cost = 0

    def __init__(self, target: torch.Tensor) -> None:
        self._target = target

    def allocate(self) -> None:
        pass

    def buffer(self) -> memoryview:
        return bytes_of(self._target)

    def deliver(self) -> None:
        pass


class Transfer(Protocol):
    """How staged bytes reach their block."""

    def stage(self, nbytes: int) -> torch.Tensor:
        """A staging buffer, ``uint8 [nbytes]`` in host memory."""

    def send(self, staged: torch.Tensor, block: torch.Tensor) -> None:
        """Copy the staged bytes into ``block``, of the same number of bytes, and give the buffer back."""

    def finish(self) -> None:
        """Return when everything that was sent has arrived, in the order of the caller's own work."""


class Staged:
    """A block that cannot be read into directly: strided, or on another device. Asked for when it is delivered."""

    def __init__(self, nbytes: int, block: Callable[[], torch.Tensor], transfer: Transfer) -> None:
        self.cost = nbytes
        self._block = block
        self._transfer = transfer
        self._staged: torch.Tensor | None = None

    def allocate(self) -> None:
        self._staged = self._transfer.stage(self.cost)

    def buffer(self) -> memoryview:
        assert self._staged is not None  # noqa: S101 - the engine allocates before it reads
        return bytes_of(self._staged)

    def deliver(self) -> None:
        if self._staged is not None:
            self._transfer.send(self._staged, self._block())
            self._staged = None


class HostTransfer:
    """Staging within host memory, for strided targets."""

    def stage(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def send(self, staged: torch.Tensor, block: torch.Tensor) -> None:
        block.copy_(staged.view(block.dtype).view(block.shape))

    def finish(self) -> None:
        pass


def blocks(target: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """``target`` in parts of at most ``limit`` bytes (or one element), in the order of its elements."""
    if target.nbytes <= limit or target.numel() <= 1:
        yield target
        return
    row = target.nbytes // target.shape[0]
    if row > limit:
        for part in target:
            yield from blocks(part, limit)
        return
    for begin in range(0, target.shape[0], limit // row):
        yield target[begin : begin + limit // row]
