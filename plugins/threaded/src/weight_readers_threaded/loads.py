# SPDX-License-Identifier: Apache-2.0
"""One tensor to be read: its units, the memory of each, and the tensor at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from weight_readers_safetensors import Wanted
from weight_readers_threaded.device import transfer_to
from weight_readers_threaded.places import Existing, Fresh, Staged, Transfer, blocks
from weight_readers_threaded.requests import Unit, cut

Place = Fresh | Existing | Staged


class Load(Protocol):
    """Units and places, one for one."""

    @property
    def units(self) -> Sequence[Unit]: ...

    @property
    def places(self) -> Sequence[Place]: ...


class FreshLoad:
    """A tensor of its own on ``device``: read into directly in host memory, else in blocks through ``transfer``."""

    def __init__(self, path: str, wanted: Wanted, device: torch.device, transfer: Transfer, block_bytes: int) -> None:
        self.wanted = wanted
        self._device = device
        self._flat: torch.Tensor | None = None
        self.places: Sequence[Place]
        if device.type == "cpu":
            self.units = [Unit(wanted.name, path, _nonempty(wanted))]
            self.places = [Fresh(wanted.shape, wanted.dtype, wanted.nbytes)]
        else:
            spans = [(b, min(b + block_bytes, wanted.nbytes)) for b in range(0, wanted.nbytes, block_bytes)]
            self.units = [Unit(wanted.name, path, cut(wanted.ranges, *span)) for span in spans]
            self.places = [Staged(end - begin, self._part(begin, end), transfer) for begin, end in spans]

    def _part(self, begin: int, end: int) -> Callable[[], torch.Tensor]:
        return lambda: self._memory()[begin:end]

    def _memory(self) -> torch.Tensor:
        """The bytes on the device, allocated when the first block arrives."""
        if self._flat is None:
            self._flat = torch.empty(self.wanted.nbytes, dtype=torch.uint8, device=self._device)
        return self._flat

    def take(self) -> torch.Tensor:
        """Hand the tensor over, and hold it no longer."""
        if self._device.type == "cpu":
            (place,) = self.places
            assert isinstance(place, Fresh)  # noqa: S101 - made above
            return place.take()
        flat, self._flat = self._memory(), None
        return flat.view(self.wanted.dtype).view(self.wanted.shape)


class IntoLoad:
    """A tensor of the caller's: read into directly where it is contiguous host memory, else in blocks."""

    def __init__(self, path: str, wanted: Wanted, target: torch.Tensor, block_bytes: int) -> None:
        self.wanted = wanted
        target = target.detach()
        self.places: Sequence[Place]
        self._transfer: Transfer | None = None
        if target.device.type == "cpu" and target.is_contiguous():
            self.units = [Unit(wanted.name, path, _nonempty(wanted))]
            self.places = [Existing(target)]
            return
        self._transfer = transfer = transfer_to(target.device, block_bytes=block_bytes)
        self.units, self.places = [], []
        done = 0
        for block in blocks(target, block_bytes):
            self.units.append(Unit(wanted.name, path, cut(wanted.ranges, done, done + block.nbytes)))
            self.places.append(Staged(block.nbytes, _always(block), transfer))
            done += block.nbytes

    def finish(self) -> None:
        if self._transfer is not None:
            self._transfer.finish()


def _always(block: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: block


def _nonempty(wanted: Wanted) -> Sequence[tuple[int, int]]:
    return [each for each in wanted.ranges if each[1]]
