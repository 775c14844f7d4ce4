# SPDX-License-Identifier: Apache-2.0
"""Where bytes go: fresh memory, a tensor that exists, or staging memory on the way to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from weight_readers_files import Range, Wanted
from weight_readers_files.memory import buffer_at, fresh
from weight_readers_threaded.staging import Part, Ring


class Place(Protocol):
    """Memory that becomes whole at once: a tensor, or a block of one.

    ``ranges`` of the file at ``path`` fill it one after the other. ``cost`` are the bytes that count as in flight
    from `allocate`, which is called once and in order, until the consumer has taken the place.
    """

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def ranges(self) -> Sequence[Range]: ...

    @property
    def cost(self) -> int: ...

    def allocate(self) -> None: ...

    def buffer(self, start: int, length: int) -> memoryview:
        """That part of the memory, about to be written to."""

    def deliver(self) -> None:
        """Send what is whole on its way to where it belongs."""

    def drop(self) -> None:
        """Hold the memory no longer."""


class Fresh:
    """A new tensor in host memory, the consumer's own once it is taken."""

    __slots__ = ("_huge_pages", "_tensor", "path", "wanted")

    def __init__(self, path: str, wanted: Wanted, *, huge_pages: bool = False) -> None:
        self.path = path
        self.wanted = wanted
        self._huge_pages = huge_pages
        self._tensor: torch.Tensor | None = None

    @property
    def name(self) -> str:
        return self.wanted.name

    @property
    def ranges(self) -> Sequence[Range]:
        return self.wanted.ranges

    @property
    def cost(self) -> int:
        return self.wanted.nbytes

    @property
    def places(self) -> Sequence[Place]:
        return (self,)

    def allocate(self) -> None:
        self._tensor = fresh(self.wanted.shape, self.wanted.dtype, huge_pages=self._huge_pages)

    def buffer(self, start: int, length: int) -> memoryview:
        assert self._tensor is not None  # noqa: S101 - the engine allocates before it reads
        return buffer_at(self._tensor.data_ptr() + start, length)

    def deliver(self) -> None:
        pass

    def drop(self) -> None:
        self._tensor = None

    def take(self) -> torch.Tensor:
        """Hand the tensor over, and hold it no longer."""
        if self._tensor is None:  # without elements there is no request that would have allocated it
            self.allocate()
        tensor, self._tensor = self._tensor, None
        assert tensor is not None  # noqa: S101 - just allocated
        return tensor


class Existing:
    """A contiguous tensor of the caller's, in host memory: written to directly."""

    __slots__ = ("_target", "path", "wanted", "written")
    cost = 0

    def __init__(self, path: str, wanted: Wanted, target: torch.Tensor) -> None:
        self.path = path
        self.wanted = wanted
        self.written = False
        self._target = target

    @property
    def name(self) -> str:
        return self.wanted.name

    @property
    def ranges(self) -> Sequence[Range]:
        return self.wanted.ranges

    @property
    def places(self) -> Sequence[Place]:
        return (self,)

    def allocate(self) -> None:
        pass

    def buffer(self, start: int, length: int) -> memoryview:
        self.written = True
        return buffer_at(self._target.data_ptr() + start, length)

    def deliver(self) -> None:
        pass

    def drop(self) -> None:
        pass

    def finish(self) -> None:
        pass


class Staged:
    """A block that cannot be read into directly: strided, or on another device. Asked for when it is delivered."""

    __slots__ = ("_block", "_nbytes", "_part", "_ring", "delivered", "name", "path", "ranges")

    def __init__(
        self, name: str, path: str, ranges: Sequence[Range], nbytes: int, block: Callable[[], torch.Tensor], ring: Ring
    ) -> None:
        self.name = name
        self.path = path
        self.ranges = ranges
        self.delivered = False
        self._nbytes = nbytes
        self._block = block
        self._ring = ring
        self._part: Part | None = None

    @property
    def cost(self) -> int:
        return self._ring.cost(self._nbytes)

    def allocate(self) -> None:
        self._part = self._ring.stage(self._nbytes)

    def buffer(self, start: int, length: int) -> memoryview:
        assert self._part is not None  # noqa: S101 - the engine allocates before it reads
        return buffer_at(self._part.memory.data_ptr() + start, length)

    def deliver(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            self.delivered = True
            self._ring.send(part, self._block())

    def drop(self) -> None:
        self._part = None
