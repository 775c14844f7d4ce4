# SPDX-License-Identifier: Apache-2.0
"""Host to device: a small ring of pinned buffers, and copies on a stream of their own.

Threads read the next chunks while the device still copies the ones before. The stream operations are behind a
small interface, so that the bookkeeping runs, and is tested, where there is no device.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import torch

from weight_readers_threaded.places import HostTransfer, Transfer

RING_BUFFERS = 4


class Streams(Protocol):
    """What the ring needs of a device."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """``uint8 [nbytes]`` in host memory that the device can copy from by itself."""

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        """Start a copy on the side stream; the event that it sets."""

    def wait(self, event: Any) -> None:
        """Return when ``event`` has happened."""

    def join(self) -> None:
        """Make the caller's own stream wait for all copies started so far."""


class CudaStreams:
    """A side stream of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        # The target may have been allocated, or last written, by work that the caller's stream still has to do.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        target.record_stream(self._stream)
        return self._stream.record_event()

    def wait(self, event: Any) -> None:
        event.synchronize()

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class PinnedRing:
    """A `Transfer` through at most ``buffers`` pinned buffers of ``nbytes`` each, used again once their copy is done.

    `stage` is called from the reading threads, one at a time; `send` and `finish` from the consumer.
    """

    def __init__(self, streams: Streams, *, nbytes: int, buffers: int = RING_BUFFERS) -> None:
        self._streams = streams
        self._nbytes = nbytes
        self._unmade = buffers
        self._free: deque[torch.Tensor] = deque()
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()

    def stage(self, nbytes: int) -> torch.Tensor:
        if not self._free and self._unmade:
            self._unmade -= 1
            self._free.append(self._streams.pinned(self._nbytes))
        if not self._free:
            event, buffer = self._sent.popleft()
            self._streams.wait(event)
            self._free.append(buffer)
        return self._free.popleft()[:nbytes]

    def send(self, staged: torch.Tensor, block: torch.Tensor) -> None:
        source = staged.view(block.dtype).view(block.shape)
        event = self._streams.copy(source, block)
        self._sent.append((event, torch.empty(0, dtype=torch.uint8).set_(staged.untyped_storage())))

    def finish(self) -> None:
        self._streams.join()


def transfer_to(device: torch.device, *, block_bytes: int) -> Transfer:
    """How blocks of at most ``block_bytes`` reach ``device``."""
    if device.type == "cuda":
        return PinnedRing(CudaStreams(device), nbytes=block_bytes)
    return HostTransfer()
