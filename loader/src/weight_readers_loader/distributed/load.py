# SPDX-License-Identifier: Apache-2.0
"""One load of many ranks, while it runs: how each of the three ways comes to its tensors, and what that costs."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weight_readers import ReadStats, TensorMeta, TensorPart, UnsupportedDtypeError, describe_reader
from weight_readers.tensors import UNKNOWN
from weight_readers_loader.adapters import Adapted
from weight_readers_loader.arguments import device_of
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.contents import Contents
from weight_readers_loader.distributed.exchange import Exchange
from weight_readers_loader.distributed.opening import Settings
from weight_readers_loader.distributed.operation import Operation
from weight_readers_loader.distributed.placements import rows
from weight_readers_loader.distributed.report import DistributedReport
from weight_readers_loader.distributed.shares import Segment, memory_bytes, shares
from weight_readers_loader.distributed.team import Team
from weight_readers_loader.loading import Source, load_placed
from weight_readers_loader.placement import Placement
from weight_readers_loader.placing import merged
from weight_readers_loader.process import storage_bytes_read
from weight_readers_loader.progress import progress_bar
from weight_readers_loader.streams import Stream, Update, both
from weight_readers_loader.wanted import Wanted


@dataclass(kw_only=True)
class Load:
    """``checkpoint`` is None on a rank that is sent everything."""

    operation: Operation
    team: Team
    settings: Settings
    contents: Contents
    checkpoint: Checkpoint | None
    show_progress: bool
    converted: dict[str, int] = field(default_factory=dict)
    stats: ReadStats = field(default_factory=ReadStats)
    reader: str | None = None
    unused: tuple[str, ...] = ()
    begun: float = field(default_factory=time.perf_counter)
    stored: int | None = field(default_factory=storage_bytes_read)

    def tensors(
        self, names: Sequence[str], device: str, slices: Mapping[str, TensorPart] | None
    ) -> dict[str, torch.Tensor]:
        """What this rank is to have of the tensors ``names``. Raises ValueError for slices where all get everything."""
        self.operation.agree("wanted", names, "wants other tensors")
        if self.settings.how != "slices":
            if slices is not None:
                raise ValueError(f"slices= is for how='slices': with {self.settings.how!r} all ranks get everything")
            _, adapted = self.contents.wanted_and_adapted(set(names).__contains__, None)
            self.converted = adapted.converted()
            found = dict(self._adapted_of_all(adapted, device))
        else:
            if self.contents.adapters:
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
        self.reader, self.unused = report.reader, report.unused
        self.stats = ReadStats(bytes_read=report.bytes_read, decisions=report.decisions)
        self.converted = self.contents.adapted.only(placement.wanted).converted()
        self._count(report.tensors, report.bytes_wanted)

    @property
    def _own(self) -> Source:
        assert self.checkpoint is not None  # noqa: S101 - a rank without one has no share to read
        return self.checkpoint.source

    def _fill_together(self, placement: Placement, device: str) -> None:
        adapted = self.contents.adapted.only(placement.wanted)
        self.operation.agree("wanted", list(adapted.tensors), "fills a target of other tensors")
        placement.check_tied(lambda some: self._adapted_of_all(adapted.only(some), device))
        with closing(self._adapted_of_all(adapted, device)) as weights:
            placement.fill(weights)
        self.converted = adapted.converted()
        self._count(len(adapted.tensors), sum(map(memory_bytes, adapted.tensors.values())))

    def _adapted_of_all(self, adapted: Adapted, device: str) -> Stream:
        """Every tensor that ``adapted`` makes, on every rank, of what all of them read."""
        return adapted.adapt(self._exchanged(adapted.needs, device))

    def _exchanged(self, names: Collection[str], device: str) -> Stream:
        """Every tensor of ``names`` on every rank; this one reads its share of them."""
        tensors = {name: meta for name, meta in self.contents.tensors.items() if name in names}
        _must_be_readable(tensors.values())
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
        names = {segment.name for segment in segments}
        return self._reading(self._own.contents.wanted(names.__contains__, parts), device)

    def _rows(self, names: Sequence[str]) -> dict[str, TensorPart]:
        parts = {name: rows(self.contents.tensors[name], self.team.own, self.team.size) for name in names}
        return {name: part for name, part in parts.items() if part is not None}

    def _parts(self, names: Sequence[str], parts: Mapping[str, TensorPart], device: str) -> Stream:
        """This rank's part of each tensor, from the files."""
        wanted = self._own.contents.wanted(set(names).__contains__, parts)
        with progress_bar("slices", wanted.nbytes, show=self.show_progress) as bar:
            for name, tensor in self._reading(wanted, device, both(self._told, bar.update)):
                self.operation.progress()
                yield name, tensor

    def _told(self, stats: ReadStats) -> None:
        self.stats = stats

    def _reading(self, wanted: Wanted, device: str, tell: Update | None = None) -> Stream:
        """Read into memory of its own: a page fault in the middle of a collective would hold up every rank."""
        stream, selection = self._own.stream(wanted, device, owned=True, tell=tell)
        self.reader = selection.chosen
        self.unused = self._own.without_use(describe_reader(selection.chosen)) if selection.chosen else ()
        return stream

    def _has_read(self, nbytes: int) -> None:
        self.stats = replace(self.stats, bytes_read=self.stats.bytes_read + nbytes)

    def _count(self, tensors: int, nbytes: int) -> None:
        self.stats = replace(self.stats, tensors=tensors, bytes_wanted=nbytes)

    def report(self, reference: str, **remarks: Any) -> DistributedReport:
        """This rank's report, once all have told what they read."""
        remarks["cast"] = merged(self.converted, remarks.get("cast", {}))
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
            decisions=self.stats.decisions,
            unused=self.unused,
            notices=self.checkpoint.notices if self.checkpoint is not None else (),
            **remarks,
        )


def _must_be_readable(metas: Iterable[TensorMeta]) -> None:
    """What a reader would say of a tensor that it lists and cannot read; some ranks have none to say it."""
    for meta in metas:
        if meta.dtype == UNKNOWN:
            what = f"the tensor cannot be delivered: {meta.converted or meta.source_dtype}"
            raise UnsupportedDtypeError(what, path=meta.file, tensor=meta.name)
