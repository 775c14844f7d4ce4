# SPDX-License-Identifier: Apache-2.0
"""Reader ``threaded``: several threads read exact ranges straight into tensors, in file order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weight_readers import CheckpointError, CheckpointMeta, ReaderInfo, ReadStats, Selection, TensorSlice
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_safetensors import FilePlan, HeaderCache, plan
from weight_readers_threaded import checks, direct
from weight_readers_threaded.device import transfer_to
from weight_readers_threaded.engine import Engine
from weight_readers_threaded.loads import FreshLoad, IntoLoad, Load
from weight_readers_threaded.options import Options
from weight_readers_threaded.plugin import INFO
from weight_readers_threaded.requests import requests

STAGING_BYTES = 32 << 20
"""In flight on the way to strided targets and other devices; what is read straight into its target costs nothing."""


class ThreadedReader:
    """Reads with several threads into tensors of their own, or of the caller's; lifetime `OWNED`.

    num_threads: at least 1, never more than there are requests. The default is 4, or fewer where this process
        has fewer CPUs to itself (affinity, cgroup quota, ranks on the node).
    chunk_bytes: the largest request, in bytes.
    max_in_flight_bytes: how much may be read ahead of the consumer of `iter_weights`, plus one tensor.
    direct_io: ``off``, ``on`` (refused where the file system has none), or ``auto``: bypass the page cache for
        files that are not in it.
    """

    info: ReaderInfo
    selection: Selection | None

    def __init__(self, **options: Any) -> None:
        self.info = INFO
        self.selection = None
        self._options = Options(**options)
        self._headers = HeaderCache()

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Check every header. Raises `CheckpointProblems` listing all that is wrong, over all files."""
        meta = self._headers.read(files).meta
        return CheckpointMeta(meta, meta.files)

    def iter_weights(
        self,
        files: Files,
        *,
        device: str = "cpu",
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorSlice] | None = None,
        clone_tensors: bool = True,
        on_progress: Progress | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield ``(name, tensor)`` shard by shard in natural order, by offset within each, whatever the threads do.

        Only the wanted ranges are read. Every tensor is the consumer's own. Raises CheckpointError before the
        first tensor for whatever the headers show; a read that fails is raised at the first tensor it leaves
        unread, after all those before it.
        """
        known = self._headers.read(files)
        plans = plan(known.meta, known.states, key_filter, slices or {})
        return self._iterate(plans, torch.device(device), on_progress)

    def _iterate(
        self, plans: Sequence[FilePlan], device: torch.device, on_progress: Progress | None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        transfer = transfer_to(device, block_bytes=self._options.chunk_bytes)
        loads = [FreshLoad(p.path, w, device, transfer, self._options.chunk_bytes) for p in plans for w in p.wanted]
        limit = self._options.max_in_flight_bytes if device.type == "cpu" else STAGING_BYTES
        stats = ReadStats(bytes_wanted=sum(plan.nbytes for plan in plans))
        with self._engine(plans, loads, limit) as engine:
            index = 0
            for load in loads:
                for place in load.places:
                    engine.wait(index)
                    place.deliver()
                    engine.release(index)
                    index += 1
                transfer.finish()
                tensor = load.take()
                stats = replace(stats, tensors=stats.tensors + 1, bytes_read=stats.bytes_read + load.wanted.nbytes)
                if on_progress is not None:
                    on_progress(stats)
                yield load.wanted.name, tensor
                del tensor

    def read_into(
        self,
        files: Files,
        targets: Mapping[str, torch.Tensor],
        *,
        slices: Mapping[str, TensorSlice] | None = None,
        on_progress: Progress | None = None,
    ) -> ReadStats:
        """Fill ``targets``, by checkpoint name, with whole tensors or the ``slices`` of them.

        Contiguous targets in host memory are read into directly, others through at most 32 MiB of staging.
        Raises TargetMismatchError, before any byte is written, where a name is not in the files or a dtype or
        shape does not match. A `CheckpointError` later on names in ``written`` the targets that were written to.
        """
        known = self._headers.read(files)
        checks.targets_known(targets, known.meta)
        plans = plan(known.meta, known.states, targets.__contains__, slices or {})
        checks.targets_fit(targets, plans)
        loads = [IntoLoad(p.path, w, targets[w.name], self._options.chunk_bytes) for p in plans for w in p.wanted]
        stats = ReadStats(bytes_wanted=sum(plan.nbytes for plan in plans))
        with self._engine(plans, loads, STAGING_BYTES) as engine:
            try:
                return self._fill(engine, loads, stats, on_progress)
            except CheckpointError as error:
                begun = [unit.name for load in loads for unit in load.units][: engine.begun]
                error.written = tuple(dict.fromkeys(begun))
                raise

    def _fill(
        self, engine: Engine, loads: Sequence[IntoLoad], stats: ReadStats, on_progress: Progress | None
    ) -> ReadStats:
        index = 0
        for load in loads:
            for place in load.places:
                while not engine.wait(index, beyond=stats.bytes_read if on_progress else None):
                    stats = replace(stats, bytes_read=engine.bytes_read)
                    if on_progress is not None:
                        on_progress(stats)
                place.deliver()
                engine.release(index)
                index += 1
            load.finish()
            stats = replace(stats, tensors=stats.tensors + 1)
        stats = replace(stats, bytes_read=engine.bytes_read)
        if on_progress is not None:
            on_progress(stats)
        return stats

    def _engine(self, plans: Sequence[FilePlan], loads: Sequence[Load], limit: int) -> Engine:
        units = [unit for load in loads for unit in load.units]
        jobs = requests(units, chunk_bytes=self._options.chunk_bytes)
        bounds = {p.path: (p.wanted[0].begin, max(w.end for w in p.wanted)) for p in plans}
        states = {p.path: p.state for p in plans}
        return Engine(
            jobs,
            units,
            [place for load in loads for place in load.places],
            threads=self._options.threads(len(jobs)),
            limit=limit,
            read=direct.read,
            open_file=lambda path: direct.open_file(path, states[path], bounds[path], self._options.direct_io),
        )
