# SPDX-License-Identifier: Apache-2.0
"""Bytes on their way: staging memory of a fixed size, for strided targets and for other devices.

Threads read the next blocks while the device still copies the ones before. What a device has to offer for that is
behind a small interface, so that the bookkeeping runs, and is tested, where there is none.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import torch

STAGING_BYTES = 32 << 20
BLOCK_BYTES = STAGING_BYTES // 4
"""The largest part that is handed out."""
IN_FLIGHT_BYTES = STAGING_BYTES - BLOCK_BYTES
"""Parts of so many bytes always have room: the end of the memory that one of them did not fit is smaller than one."""

_ALIGNMENT = 64


class Streams(Protocol):
    """What staging needs of a device."""

    def memory(self, nbytes: int) -> torch.Tensor:
        """``uint8 [nbytes]`` in host memory that the device can copy from."""

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        """Start a copy; the event that it sets."""

    def wait(self, event: Any) -> None:
        """Return when ``event`` has happened."""

    def join(self) -> None:
        """Make the caller's own work on the device wait for all copies started so far."""


class HostStreams:
    """Copies that are done when the call returns: within host memory, and to devices without streams."""

    def memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        target.copy_(source)
        return True

    def wait(self, event: Any) -> None:
        pass

    def join(self) -> None:
        pass


class CudaStreams:
    """A side stream of one CUDA device, and pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

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


class Part:
    """Staging memory of one block; ``sent`` is the event of its copy, once that was started."""

    __slots__ = ("begin", "memory", "sent")

    def __init__(self, begin: int, memory: torch.Tensor) -> None:
        self.begin = begin
        self.memory = memory
        self.sent: Any = None


class Ring:
    """`STAGING_BYTES` of memory that are handed out, sent and used again in one and the same order.

    `stage` is called by one thread at a time, `send` and `finish` by the consumer. Whoever stages keeps what is
    staged and not yet sent within `IN_FLIGHT_BYTES`, as `cost` counts them.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._memory: torch.Tensor | None = None
        self._parts: deque[Part] = deque()
        # Counted on and on, as if the memory were repeated without end.
        self._end = 0

    def cost(self, nbytes: int) -> int:
        return -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def stage(self, nbytes: int) -> Part:
        """Memory for one block of at most `BLOCK_BYTES`; waits for copies to end where it is still in use."""
        if self._memory is None:
            self._memory = self._streams.memory(STAGING_BYTES)
        at = self._end % STAGING_BYTES
        if at + nbytes > STAGING_BYTES:
            self._end += STAGING_BYTES - at
            at = 0
        part = Part(self._end, self._memory[at : at + nbytes])
        self._end += self.cost(nbytes)
        while self._parts and self._parts[0].begin < self._end - STAGING_BYTES:
            self._streams.wait(self._parts[0].sent)
            self._parts.popleft()
        self._parts.append(part)
        return part

    def send(self, part: Part, block: torch.Tensor) -> None:
        """Start to copy the part into ``block``, of the same number of bytes."""
        part.sent = self._streams.copy(part.memory.view(block.dtype).view(block.shape), block)

    def finish(self) -> None:
        """Whatever the caller does next with the blocks comes after the copies of what was sent."""
        self._streams.join()


def ring_for(device: torch.device) -> Ring:
    return Ring(CudaStreams(device) if device.type == "cuda" else HostStreams())
