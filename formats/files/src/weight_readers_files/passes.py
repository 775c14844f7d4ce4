# SPDX-License-Identifier: Apache-2.0
"""One pass over the files: open, map or read, check, count, hand out."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import torch

from weight_readers import ReadStats
from weight_readers.reader import Progress
from weight_readers_files import FilePlan, Wanted, lies_everywhere, tensors
from weight_readers_files.devices import placement
from weight_readers_files.options import MappingOptions
from weight_readers_files.plans import bytes_wanted
from weight_readers_files.prefetch import ReadAhead
from weight_readers_files.ranges import SHORT_GAP
from weight_readers_files.segments import segments
from weight_readers_files.source import Source


class _Place(NamedTuple):
    """Where the tensors of one segment come from: a mapping that begins at ``base``, or plain reads."""

    file: int
    source: Source
    mapped: memoryview | None
    base: int


Finish = Callable[[torch.Tensor], torch.Tensor]


class Pass:
    """The tensors of the plans, in order, once.

    ``finish`` is what is done to some of them on their device, by name. Those in ``read`` are read, not mapped: what
    computes with a mapping dies of a file that is cut meanwhile, and would make numbers of bytes that nobody checked.
    Raises ValueError for the meta device.
    """

    def __init__(
        self,
        plans: Sequence[FilePlan],
        options: MappingOptions,
        *,
        device: str | torch.device,
        on_progress: Progress | None,
        finish: Mapping[str, Finish] | None = None,
        read: Container[str] = (),
    ) -> None:
        self._plans = plans
        self._options = options
        self._device = placement(device)
        self._on_progress = on_progress
        self._finish = finish or {}
        self._read = read
        self._ahead: ReadAhead | None = None
        self._bytes_wanted = bytes_wanted(plans)
        self._count = 0
        self._bytes_read = 0
        self._copied = 0

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        with ExitStack() as stack:
            if self._options.prefetch:
                self._ahead = ReadAhead(self._plans, threads=self._options.prefetch)
                stack.enter_context(closing(self._ahead))
            for file, plan in enumerate(self._plans):
                exact = self._is_exact(plan)
                with Source(plan.path, plan.state, readonly=self._options.readonly, exact=exact) as source:
                    for run in segments(plan.wanted):
                        if exact and self._ahead is None:
                            source.will_need(plan._replace(wanted=run).pages())
                        yield from self._segment(run, file, source)
                    source.check()

    def _is_exact(self, plan: FilePlan) -> bool:
        """Whether the kernel is to read what is wanted and no more: not from a mapping of short gaps, page by page."""
        return plan.partial and (self._options.copy or not lies_everywhere(plan.wanted, short_gap=SHORT_GAP))

    def _segment(self, run: Sequence[Wanted], file: int, source: Source) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of one segment. Neither they nor the mapping are held here once they were handed out."""
        place = _Place(file, source, *self._map(run, source))
        for wanted in run:
            yield wanted.name, self._tensor(wanted, place)

    def _map(self, run: Sequence[Wanted], source: Source) -> tuple[memoryview | None, int]:
        begin, end = run[0].begin, max(each.end for each in run)
        if self._options.copy or begin == end or all(each.name in self._read for each in run):
            return None, begin
        return source.map(begin, end, tensor=run[0].name if len(run) == 1 else None)

    def _tensor(self, wanted: Wanted, place: _Place) -> torch.Tensor:
        if self._ahead is not None:
            self._ahead.need(place.file, wanted.end)
        tensor = self._made(wanted, place)
        place.source.check(wanted.name)
        self._count += 1
        self._bytes_read += wanted.nbytes
        if self._on_progress is not None:
            self._on_progress(self._stats())
        placed = tensor if self._device.type == "cpu" else tensor.to(self._device)
        finish = self._finish.get(wanted.name)
        return placed if finish is None else finish(placed)

    def _made(self, wanted: Wanted, place: _Place) -> torch.Tensor:
        if wanted.nbytes == 0:
            return tensors.empty(wanted)
        is_read = wanted.name in self._read
        if place.mapped is not None and wanted.is_aligned and not is_read:
            return tensors.view(wanted, place.mapped, place.base)
        self._copied += place.mapped is not None and not is_read
        return tensors.read(wanted, place.source)

    def _stats(self) -> ReadStats:
        return ReadStats(
            tensors=self._count, bytes_wanted=self._bytes_wanted, bytes_read=self._bytes_read, copied=self._copied
        )
