# SPDX-License-Identifier: Apache-2.0
"""One tensor to be read: the places of its bytes, and what happens when all of them are whole."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from weight_readers_files import FilePlan, Wanted, cut
from weight_readers_files.targets import blocks
from weight_readers_threaded.places import Existing, Fresh, Place, Staged
from weight_readers_threaded.staging import BLOCK_BYTES, Ring, ring_for

_TOGETHER = 64


class Load(Protocol):
    """One tensor, whole once each of its places was delivered."""

    @property
    def wanted(self) -> Wanted: ...

    @property
    def places(self) -> Sequence[Place]: ...


class FreshLoad(Load, Protocol):
    def take(self) -> torch.Tensor:
        """Hand the tensor over, and hold it no longer."""


class IntoLoad(Load, Protocol):
    @property
    def written(self) -> bool:
        """Whether bytes may have reached the target."""

    def finish(self) -> None:
        """Whatever the caller does next with the target comes after its bytes."""


class FreshOnDevice:
    """A new tensor on another device, filled in blocks."""

    def __init__(self, path: str, wanted: Wanted, device: torch.device, ring: Ring) -> None:
        self.wanted = wanted
        self._device = device
        self._ring = ring
        self._flat: torch.Tensor | None = None
        spans = [(at, min(at + BLOCK_BYTES, wanted.nbytes)) for at in range(0, wanted.nbytes, BLOCK_BYTES)]
        self.places = [
            Staged(wanted.name, path, cut(wanted.ranges, *span), span[1] - span[0], self._part(*span), ring)
            for span in spans
        ]

    def _part(self, begin: int, end: int) -> Callable[[], torch.Tensor]:
        return lambda: self._memory()[begin:end]

    def _memory(self) -> torch.Tensor:
        """The bytes on the device, allocated when the first block arrives."""
        if self._flat is None:
            self._flat = torch.empty(self.wanted.nbytes, dtype=torch.uint8, device=self._device)
        return self._flat

    def take(self) -> torch.Tensor:
        self._ring.finish()
        flat, self._flat = self._memory(), None
        return flat.view(self.wanted.dtype).view(self.wanted.shape)


class IntoBlocks:
    """A tensor of the caller's that is strided, or on another device."""

    def __init__(self, path: str, wanted: Wanted, target: torch.Tensor, ring: Ring) -> None:
        self.wanted = wanted
        self._ring = ring
        self.places = []
        done = 0
        for block in blocks(target, BLOCK_BYTES) if target.nbytes else ():
            ranges = cut(wanted.ranges, done, done + block.nbytes)
            self.places.append(Staged(wanted.name, path, ranges, block.nbytes, _always(block), ring))
            done += block.nbytes

    @property
    def written(self) -> bool:
        return any(place.delivered for place in self.places)

    def finish(self) -> None:
        self._ring.finish()


def fresh_loads(plans: Iterable[FilePlan], device: torch.device, *, huge_pages: bool) -> Iterator[FreshLoad]:
    """Tensors of their own on ``device``: read into directly in host memory, else through one ring."""
    if device.type == "cpu":
        return (Fresh(plan.path, wanted, huge_pages=huge_pages) for plan in plans for wanted in plan.wanted)
    ring = ring_for(device)
    return (FreshOnDevice(plan.path, wanted, device, ring) for plan in plans for wanted in plan.wanted)


def into_loads(
    plans: Iterable[FilePlan], targets: Mapping[str, torch.Tensor], plain: Container[str]
) -> Iterator[IntoLoad]:
    """The caller's tensors: read into directly where the bytes in memory are those of the file, as of ``plain``."""
    others = {target.device for name, target in targets.items() if name not in plain}
    rings = {device: ring_for(device) for device in others}

    def load(path: str, wanted: Wanted) -> IntoLoad:
        target = targets[wanted.name]
        if wanted.name in plain:
            return Existing(path, wanted, target)
        return IntoBlocks(path, wanted, target.detach(), rings[target.device])

    return (load(plan.path, wanted) for plan in plans for wanted in plan.wanted)


def steps(loads: Iterable[IntoLoad]) -> Iterator[tuple[Sequence[Place], Sequence[IntoLoad]]]:
    """Places that the consumer waits for at once, and the loads that are whole with them.

    Many that take no room together: each time the consumer wakes, it takes a CPU from a thread that copies.
    """
    together: list[Existing] = []
    for load in loads:
        if isinstance(load, Existing):
            together.append(load)
            if len(together) < _TOGETHER:
                continue
        if together:
            yield together, together
            together = []
        if not isinstance(load, Existing):
            yield from (((place,), ()) for place in load.places)
            yield (), (load,)
    if together:
        yield together, together


class Written:
    """``loads`` as they pass, and the names of the targets that bytes may have reached, in order."""

    def __init__(self, loads: Iterable[IntoLoad]) -> None:
        self._loads = loads
        self._begun: dict[str, IntoLoad] = {}
        self._finished: list[str] = []

    def __iter__(self) -> Iterator[IntoLoad]:
        for load in self._loads:
            self._begun[load.wanted.name] = load
            yield load

    def finish(self, loads: Sequence[IntoLoad]) -> None:
        """The loads are whole, and not looked at again."""
        for load in loads:
            load.finish()
            del self._begun[load.wanted.name]
            if load.written:
                self._finished.append(load.wanted.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Not to be asked for while threads read."""
        return (*self._finished, *(name for name, load in self._begun.items() if load.written))


def _always(block: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: block
