# SPDX-License-Identifier: Apache-2.0
"""The caller's tensors as places to read to: their own memory, or blocks that are copied to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from weight_readers import CheckpointError, ReadStats
from weight_readers.reader import Progress
from weight_readers_files import FilePlan, Wanted, cut
from weight_readers_files.targets import as_bytes, blocks, tell_autograd
from weight_readers_runai.requests import BLOCK_BYTES, SMALL_BYTES, Load
from weight_readers_runai.session import Source, opened, refused, window_of
from weight_readers_runai.streamer import Streamer, StreamerError
from weight_readers_runai.window import PAGE_BYTES, Arriving, Window

SETTLE_SECONDS = 60.0
"""How long a failed read waits for requests under way, which write to the caller's memory. A server that never
answers holds the library for about 40 seconds."""


class Delivery(NamedTuple):
    """A target, or a block of one: read in place, or to memory of its own and copied to ``block``."""

    load: Load
    block: torch.Tensor | None
    completes: bool


def deliveries(
    plans: Sequence[FilePlan], targets: Mapping[str, torch.Tensor], plain: Container[str]
) -> Iterator[Delivery]:
    """What is to be read, in file order; ``plain`` targets hold in memory the very bytes of the file."""
    for plan in plans:
        for wanted in plan.wanted:
            target = targets[wanted.name].detach()
            if wanted.name in plain:
                yield Delivery(Load(plan, wanted, as_bytes(target)), None, completes=True)
            else:
                yield from _in_blocks(plan, wanted, target)


def _in_blocks(plan: FilePlan, wanted: Wanted, target: torch.Tensor) -> Iterator[Delivery]:
    """Blocks of a target that is strided or on another device, each no more than one request."""
    done = 0
    for block in blocks(target, BLOCK_BYTES):
        end = done + block.nbytes
        yield Delivery(Load(plan, _part(wanted, block, done, end)), block, completes=end == wanted.nbytes)
        done = end


def _part(wanted: Wanted, block: torch.Tensor, begin: int, end: int) -> Wanted:
    ranges = cut(wanted.ranges, begin, end)
    first = ranges[0][0] if ranges else wanted.begin
    last = sum(ranges[-1]) if ranges else first
    return Wanted(wanted.name, wanted.dtype, tuple(block.shape), None, ranges, first, last, end - begin)


def reached_directly(plans: Sequence[FilePlan], plain: Mapping[str, int]) -> dict[str, int]:
    """Of the targets at these addresses, those that the library itself reads into past the page cache.

    They lie as far behind a page as their bytes in the file. Of the others it would take the bytes from the cache,
    unless they are read in blocks of ours. What is small, or not in one piece, is left to it.
    """
    large = {
        wanted.name: wanted.begin
        for plan in plans
        for wanted in plan.wanted
        if len(wanted.ranges) == 1 and wanted.nbytes > SMALL_BYTES
    }
    return {name: at for name, at in plain.items() if (at - large.get(name, at)) % PAGE_BYTES == 0}


class Filled:
    """What has arrived so far, and what it has cost; ``copied_to`` are the targets that blocks were copied to."""

    def __init__(self, bytes_wanted: int, on_progress: Progress | None, decisions: tuple[str, ...] = ()) -> None:
        self.stats = ReadStats(bytes_wanted=bytes_wanted, decisions=decisions)
        self.copied_to: set[str] = set()
        self._on_progress = on_progress

    def take(self, delivery: Delivery, arriving: Arriving) -> None:
        """Copy the bytes to their target where they are not there yet, and tell of them."""
        read = arriving.take(torch.device("cpu"))
        if delivery.block is not None:
            self.copied_to.add(delivery.load.wanted.name)
            delivery.block.copy_(read)
        self.stats = replace(
            self.stats,
            tensors=self.stats.tensors + delivery.completes,
            bytes_read=self.stats.bytes_read + delivery.load.wanted.nbytes,
        )
        if self._on_progress is not None:
            self._on_progress(self.stats)


def read_into(
    source: Source,
    plans: Sequence[FilePlan],
    targets: Mapping[str, torch.Tensor],
    plain: Container[str],
    filled: Filled,
    *,
    limit: int,
    timeout: float,
) -> None:
    """Fill ``targets``. A `CheckpointError` on the way says in ``written`` which may have been written to."""
    places = [*deliveries(plans, targets, plain)]
    streamer = opened(source, plans)
    window = window_of(source, [each.load for each in places], streamer, limit=limit, in_order=True, timeout=timeout)
    # What was written is asked once the session has ended: until then the library writes.
    try:
        with _settled(streamer), torch.inference_mode():
            _fill(source, plans, window, places, filled)
    except CheckpointError as error:
        written = window.written | filled.copied_to
        error.written = tuple(each.name for plan in plans for each in plan.wanted if each.name in written)
        raise
    finally:
        tell_autograd(targets[name] for name in window.written | filled.copied_to)


def _fill(
    source: Source, plans: Sequence[FilePlan], window: Window, places: Sequence[Delivery], filled: Filled
) -> None:
    left = Counter(each.load.plan.path for each in places)
    try:
        for delivery, arriving in zip(places, window.arrivals(), strict=True):
            path = arriving.plan.path
            left[path] -= 1
            source.check(arriving.plan, arriving.wanted.name, last=not left[path])
            filled.take(delivery, arriving)
    except StreamerError as error:
        raise refused(plans, error) from error


@contextmanager
def _settled(streamer: Streamer) -> Iterator[None]:
    """End the session with the block, an error not before the reads under way: they go to memory of the caller's."""
    try:
        yield
    except CheckpointError as error:
        if not streamer.close(patience=SETTLE_SECONDS):
            still = "Reads are still under way that write to the targets: use these no more"
            error.fix = f"{error.fix}. {still}" if error.fix else still
        raise
    finally:
        streamer.close(patience=SETTLE_SECONDS)
