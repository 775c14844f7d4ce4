# SPDX-License-Identifier: Apache-2.0
"""One load of many ranks, while it runs: how each of the three ways comes to its tensors, and what that costs."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch

from weight_readers import ReadStats, TensorMeta, TensorSlice
from weight_readers_loader.arguments import device_of
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.distributed.exchange import Exchange
from weight_readers_loader.distributed.opening import Settings
from weight_readers_loader.distributed.operation import Operation
from weight_readers_loader.distributed.placements import rows
from weight_readers_loader.distributed.report import DistributedReport
from weight_readers_loader.distributed.shares import Segment, memory_bytes, shares
from weight_readers_loader.distributed.team import Team
from weight_readers_loader.loading import Source, load_placed
from weight_readers_loader.placement import Placement
from weight_readers_loader.process import storage_bytes_read
from weight_readers_loader.progress import progress_bar
from weight_readers_loader.streams import Stream


@dataclass(kw_only=True)
class Load:
    """``checkpoint`` is None on a rank that is sent everything."""

    operation: Operation
    team: Team
    settings: Settings
    metas: Mapping[str, TensorMeta]
    checkpoint: Checkpoint | None
    show_progress: bool
    stats: ReadStats = field(default_factory=ReadStats)
    reader: str | None = None
    begun: float = field(default_factory=time.perf_counter)
    stored: int | None = field(default_factory=storage_bytes_read)

    def tensors(
        self, names: Sequence[str], device: str, slices: Mapping[str, TensorSlice] | None
    ) -> dict[str, torch.Tensor]:
        """What this rank is to have of the tensors ``names``. Raises ValueError for slices where all get everything."""
        self.operation.agree("wanted", names, "wants other tensors")
        if self.settings.how != "slices":
            if slices is not None:
                raise ValueError(f"slices= is for how='slices': with {self.settings.how!r} all ranks get everything")
            found = dict(self._exchanged(names, device))
        else:
            if self._own.contents.adapters:
                raise ValueError("adapters are for load_into here: parts of tensors are read as the files have them")
            found = dict(self._parts(names, self._rows(names) if slices is None else slices, device))
        self._count(len(found), sum(tensor.nbytes for tensor in found.values()))
        return found

    def fill(self, placement: Placement, device: str | None, *, owned: bool) -> None:
        if self.settings.how != "slices":
            self._fill_together(placement, device_of(placement.where(device)))
            return
        report = load_placed(
            self._own,
            placement,
            device=device,
            owned=owned,
            verify=False,
            show_progress=self.show_progress,
            tell=self.operation.progress,
        )
        self.stats, self.reader = ReadStats(bytes_read=report.bytes_read), report.reader
        self._count(report.tensors, report.bytes_wanted)

    @property
    def _own(self) -> Source:
        assert self.checkpoint is not None  # noqa: S101 - a rank without one has no share to read
        return self.checkpoint.source

    def _fill_together(self, placement: Placement, device: str) -> None:
        names = [name for name in self.metas if name in placement.wanted]
        self.operation.agree("wanted", names, "fills a target of other tensors")
        placement.check_tied(lambda some: self._exchanged([name for name in names if name in some], device))
        with closing(self._exchanged(names, device)) as weights:
            placement.fill(weights)
        self._count(len(names), sum(memory_bytes(self.metas[name]) for name in names))

    def _exchanged(self, names: Collection[str], device: str) -> Stream:
        """Every tensor of ``names`` on every rank; this one reads its share of them."""
        tensors = {name: self.metas[name] for name in names}
        readers = self.team.size if self.settings.how == "partition" else 1
        carrier = self.team.carrier(device)
        with progress_bar(self.settings.how, sum(map(memory_bytes, tensors.values())), show=self.show_progress) as bar:
            yield from Exchange(
                operation=self.operation,
                tensors=tensors,
                parts=[*shares(tensors, readers), *([] for _ in range(self.team.size - readers))],
                own=self.team.own,
                source=lambda segments: self._share(segments, carrier),
                bucket_bytes=self.settings.bucket_bytes,
                carrier=carrier,
                device=device,
                update=bar.update,
            ).tensors_of_all()

    def _share(self, segments: Sequence[Segment], device: str) -> Stream:
        parts = {segment.name: segment.part for segment in segments if segment.part is not None}
        self._has_read(sum(segment.stored for segment in segments))
        return self._reading({segment.name for segment in segments}, parts, device)

    def _rows(self, names: Sequence[str]) -> dict[str, TensorSlice]:
        parts = {name: rows(self.metas[name], self.team.own, self.team.size) for name in names}
        return {name: part for name, part in parts.items() if part is not None}

    def _parts(self, names: Sequence[str], parts: Mapping[str, TensorSlice], device: str) -> Stream:
        """This rank's part of each tensor, from the files."""
        wanted = self._own.contents.wanted(set(names).__contains__, parts)
        stats = ReadStats(bytes_wanted=wanted.nbytes)
        self._has_read(wanted.nbytes)
        with progress_bar("slices", wanted.nbytes, show=self.show_progress) as bar:
            for name, tensor in self._reading(names, parts, device):
                self.operation.progress()
                stats = ReadStats(bytes_wanted=wanted.nbytes, bytes_read=stats.bytes_read + tensor.nbytes)
                bar.update(stats)
                yield name, tensor

    def _reading(self, names: Collection[str], parts: Mapping[str, TensorSlice], device: str) -> Stream:
        """Read into memory of its own: a page fault in the middle of a collective would hold up every rank."""
        wanted = self._own.contents.wanted(set(names).__contains__, parts)
        stream, selection = self._own.stream(wanted, device, owned=True)
        self.reader = selection.chosen
        return stream

    def _has_read(self, nbytes: int) -> None:
        self.stats = ReadStats(bytes_read=self.stats.bytes_read + nbytes)

    def _count(self, tensors: int, nbytes: int) -> None:
        self.stats = ReadStats(tensors=tensors, bytes_wanted=nbytes, bytes_read=self.stats.bytes_read)

    def report(self, reference: str, **remarks: Any) -> DistributedReport:
        """This rank's report, once all have told what they read."""
        told = self.operation.gather("read", json.dumps(self.stats.bytes_read).encode())
        now = storage_bytes_read()
        return DistributedReport(
            reference=reference,
            how=self.settings.how,
            rank=self.team.rank,
            reader=self.reader,
            tensors=self.stats.tensors,
            bytes_wanted=self.stats.bytes_wanted,
            bytes_read=self.stats.bytes_read,
            read_by_rank=dict(zip(self.team.ranks, map(json.loads, told), strict=True)),
            storage_bytes=None if now is None or self.stored is None else now - self.stored,
            seconds=time.perf_counter() - self.begun,
            notices=self.checkpoint.notices if self.checkpoint is not None else (),
            **remarks,
        )
