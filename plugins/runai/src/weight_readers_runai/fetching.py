# SPDX-License-Identifier: Apache-2.0
"""Ranges of an object of any format, handed out as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from weight_readers import CheckpointError
from weight_readers_files import FilePlan, Range, Wanted, coalesce
from weight_readers_files.memory import buffer_at
from weight_readers_runai.requests import BLOCK_BYTES, Load
from weight_readers_runai.session import Source, opened, refused, window_of
from weight_readers_runai.streamer import StreamerError

Write = Callable[[int, memoryview], None]


def fetch(source: Source, path: str, ranges: Iterable[Range], write: Write, *, limit: int, timeout: float) -> None:
    """Give ``write`` the bytes of ``ranges``, in any order; at most ``limit`` are held meanwhile, and two blocks."""
    plan = FilePlan(path, None, [*_blocks(coalesce(ranges))], partial=True)
    if not plan.wanted:
        return
    streamer = opened(source, [plan])
    loads = [Load(plan, wanted) for wanted in plan.wanted]
    window = window_of(source, loads, streamer, limit=limit, in_order=False, timeout=timeout)
    try:
        for arriving in window.arrivals():
            begin, data = arriving.wanted.begin, arriving.take(torch.device("cpu"))
            write(begin, buffer_at(data.data_ptr(), data.nbytes))
        source.check(plan, "", last=True)
    except StreamerError as error:
        raise refused([plan], error) from error
    except CheckpointError as error:
        error.tensor = error.tensor or None
        raise
    finally:
        streamer.close(**({"patience": 0.5} if window.timed_out else {}))


def _blocks(ranges: Iterable[Range]) -> Iterator[Wanted]:
    """What the library reads at once, as tensors of bytes."""
    for offset, length in ranges:
        end = offset + length
        while offset < end:
            last = min(end, (offset // BLOCK_BYTES + 1) * BLOCK_BYTES)
            count = last - offset
            yield Wanted("", torch.uint8, (count,), None, ((offset, count),), offset, last, count)
            offset = last
