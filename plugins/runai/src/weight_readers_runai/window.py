# SPDX-License-Identifier: Apache-2.0
"""Tensors read ahead of the consumer, within a bound of bytes, and handed out in order."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from weight_readers_files import FilePlan, Wanted
from weight_readers_files.memory import fresh, fresh_at, shaped
from weight_readers_runai import guard
from weight_readers_runai.requests import SMALL_BYTES, Block, Load
from weight_readers_runai.streamer import OK, Streamer, Target

SHORT = -1
"""In place of a code of the library: it said that all is well, and bytes are missing."""

Failure = Callable[[int | None, str, str, int], Exception]
"""The error for a code (None: no answer in time), the path, the first tensor that met with it, the offset it met it at.
"""

PAGE_BYTES = 4096


class Arriving:
    """A tensor on its way: ``blocks`` of it are still to come."""

    __slots__ = ("blocks", "is_asked", "is_callers", "memory", "plan", "wanted")

    def __init__(self, load: Load) -> None:
        self.plan: FilePlan = load.plan
        self.wanted: Wanted = load.wanted
        self.blocks = 0
        self.memory: torch.Tensor | None = load.target
        self.is_callers = load.target is not None
        self.is_asked = False

    @property
    def held(self) -> int:
        """Bytes that are held for it from the first request on, until it is taken."""
        return 0 if self.is_callers else self.wanted.nbytes

    def allocate(self, *, congruent: bool) -> None:
        """``congruent`` memory lies at the same distance from a page as the bytes in the file: direct reads want it."""
        nbytes, begin = self.wanted.nbytes, self.wanted.begin
        shifted = congruent and nbytes > SMALL_BYTES and len(self.wanted.ranges) == 1 and self.wanted.is_aligned
        try:
            self.memory = fresh_at(begin % PAGE_BYTES, nbytes) if shifted else fresh((nbytes,), torch.uint8)
        except MemoryError as error:
            where = f"tensor {self.wanted.name!r} of {self.plan.path}"
            raise MemoryError(f"no {nbytes} bytes of memory for {where}") from error

    def take(self, device: torch.device) -> torch.Tensor:
        """The tensor, of which nothing is kept here."""
        memory, self.memory = self.memory, None
        if memory is None:
            return fresh(self.wanted.shape, self.wanted.dtype).to(device)
        return shaped(memory, self.wanted.dtype, self.wanted.shape).to(device)


class _Part(NamedTuple):
    """A block under way to ``memory``, from ``begin`` on; or the end of another part, read once more."""

    block: Block
    memory: torch.Tensor
    begin: int
    confirms: _Part | None = None

    @property
    def target(self) -> Target:
        return Target(self.block.offset, self.block.length, self.memory.data_ptr() + self.begin)


class Window:
    """Reads ``requests`` ahead of the consumer and yields each of ``loads`` when all its bytes are there.

    limit: bytes of tensors, and of blocks that are divided among several or go to memory of the caller's, which may
        be held at once. What the next tensor still needs is read in any case, so up to two blocks of 8 MiB come on
        top.
    in_order: in the order of ``loads``, otherwise as they become whole.
    timeout: seconds without an answer after which reading fails.
    guarded: check that ranges arrive whole, as over a network they may not.
    congruent: place large tensors as direct reads want them.
    """

    def __init__(
        self,
        streamer: Streamer,
        loads: Sequence[Load],
        requests: Sequence[Sequence[Block]],
        *,
        limit: int,
        in_order: bool,
        timeout: float,
        failure: Failure,
        guarded: bool = False,
        congruent: bool = False,
    ) -> None:
        self._streamer = streamer
        self._tensors = [Arriving(load) for load in loads]
        self._requests = deque(requests)
        self._limit = limit
        self._in_order = in_order
        self._timeout = timeout
        self._failure = failure
        self._guarded = guarded
        self._congruent = congruent
        self.timed_out = False
        self._held = 0
        self._under_way: dict[int, list[_Part]] = {}
        self._whole: deque[int] = deque()
        for block in (block for request in requests for block in request):
            for number in {piece.load for piece in block.pieces}:
                self._tensors[number].blocks += 1

    @property
    def written(self) -> set[str]:
        """The names whose memory is the caller's and may have been written to."""
        return {tensor.wanted.name for tensor in self._tensors if tensor.is_callers and tensor.is_asked}

    def arrivals(self) -> Iterator[Arriving]:
        """Yield each tensor once all of it is there; the consumer takes it out before the next."""
        for number in self._in_given_order() if self._in_order else self._as_they_come():
            self._settle_environment()
            self._held -= self._tensors[number].held
            self._submit(number)
            yield self._tensors[number]

    def _settle_environment(self) -> None:
        """Other sessions wait for the environment to be theirs, and the consumer may rest before it asks for more."""
        if self._streamer.holds_environment:
            if self._under_way:
                self._wait()
            self._streamer.restore_environment()

    def _in_given_order(self) -> Iterator[int]:
        for number, tensor in enumerate(self._tensors):
            self._submit(number)
            while tensor.blocks:
                self._wait()
                self._submit(number)
            yield number

    def _as_they_come(self) -> Iterator[int]:
        self._whole.extend(number for number, tensor in enumerate(self._tensors) if not tensor.blocks)
        for _ in self._tensors:
            self._submit(0)
            while not self._whole:
                self._wait()
                self._submit(0)
            yield self._whole.popleft()

    # --- asking -------------------------------------------------------------------------------------------

    def _submit(self, head: int) -> None:
        """Submit what there is room for, whatever tensor number ``head`` still needs, and one request at least."""
        while self._requests:
            request = self._requests[0]
            needed = request[0].pieces[0].load <= head or not self._under_way
            if not needed and self._held + self._cost(request) > self._limit:
                return
            self._start(self._requests.popleft())

    def _cost(self, request: Sequence[Block]) -> int:
        fresh = {piece.load for block in request for piece in block.pieces}
        tensors = sum(self._tensors[n].wanted.nbytes for n in fresh if self._tensors[n].memory is None)
        return tensors + sum(block.length for block in request if self._is_passing(block))

    def _is_passing(self, block: Block) -> bool:
        """Whether the block counts by itself while it is under way: no tensor of ours holds its bytes."""
        return not block.is_direct or self._tensors[block.pieces[0].load].is_callers

    def _start(self, request: Sequence[Block]) -> None:
        self._held += self._cost(request)
        self._ask(request[0].path, [self._part(block) for block in request])

    def _part(self, block: Block) -> _Part:
        for piece in block.pieces:
            tensor = self._tensors[piece.load]
            tensor.is_asked = True
            if tensor.memory is None:
                tensor.allocate(congruent=self._congruent)
        if not block.is_direct:
            return _Part(block, fresh((block.length,), torch.uint8), 0)
        (piece,) = block.pieces
        return _Part(block, self._memory(piece.load), piece.begin)

    def _ask(self, path: str, parts: list[_Part]) -> None:
        targets = [part.target for part in parts]
        if self._guarded:
            for part in parts:
                guard.mark(part.target, again=part.confirms is not None)
        self._under_way[self._streamer.submit(path, targets, parts)] = parts

    def _memory(self, number: int) -> torch.Tensor:
        memory = self._tensors[number].memory
        assert memory is not None  # noqa: S101 - allocated before its first block was asked for
        return memory

    # --- answers ------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        answer = self._streamer.next(self._timeout)
        if answer is None:
            self.timed_out = True
            raise self._failed(None, next(iter(self._under_way.values()))[0])
        part = self._under_way[answer.submission][answer.place]
        if answer.done:
            del self._under_way[answer.submission]
        if answer.code != OK:
            raise self._failed(answer.code, part)
        if self._guarded and not self._is_confirmed(part):
            return
        self._finish(part.confirms or part)

    def _failed(self, code: int | None, part: _Part) -> Exception:
        tensor = self._tensors[part.block.pieces[0].load]
        return self._failure(code, tensor.plan.path, tensor.wanted.name, part.block.offset)

    def _is_confirmed(self, part: _Part) -> bool:
        """Whether the part arrived whole. Where that cannot be told yet, its end is read again."""
        first = part.confirms
        if first is None:
            if not guard.is_marked(part.target):
                return True
            end = guard.tail(part.target, 0)
            memory = fresh((end.length,), torch.uint8)
            again = Block(part.block.path, end.offset, end.length, part.block.pieces)
            self._ask(part.block.path, [_Part(again, memory, 0, confirms=part)])
            return False
        if guard.is_marked(part.target, again=True) or not guard.same_bytes(first.target, part.target):
            raise self._failed(SHORT, first)
        return True

    def _finish(self, part: _Part) -> None:
        if not part.block.is_direct:
            self._spread(part)
        if self._is_passing(part.block):
            self._held -= part.block.length
        for number in {piece.load for piece in part.block.pieces}:
            tensor = self._tensors[number]
            tensor.blocks -= 1
            if not tensor.blocks and not self._in_order:
                self._whole.append(number)

    def _spread(self, part: _Part) -> None:
        """Copy the pieces of a block to their tensors."""
        base = part.memory.data_ptr() - part.block.offset
        for load, begin, offset, length in part.block.pieces:
            ctypes.memmove(self._memory(load).data_ptr() + begin, base + offset, length)
