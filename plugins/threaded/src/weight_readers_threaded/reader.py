# SPDX-License-Identifier: Apache-2.0
"""Reader ``threaded``: several threads read exact ranges straight into tensors, in file order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from weight_readers import CheckpointError, CheckpointMeta, ReaderInfo, ReadStats, Selection, TensorPart
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_files import FilePlan, ranges_of
from weight_readers_files.crew import PATIENCE_SECONDS
from weight_readers_files.devices import placement
from weight_readers_files.plans import bytes_wanted
from weight_readers_files.targets import checked_plans, tell_autograd
from weight_readers_safetensors import HeaderCache, plan
from weight_readers_threaded import direct
from weight_readers_threaded.engine import Engine, L
from weight_readers_threaded.loads import IntoLoad, Written, fresh_loads, into_loads, steps
from weight_readers_threaded.options import MIB, Options
from weight_readers_threaded.plugin import INFO
from weight_readers_threaded.staging import IN_FLIGHT_BYTES

_CHUNK_BYTES = 8 * MIB
_LONG_CHUNK_BYTES = 32 * MIB
"""Threads that read side by side are slower than threads that read apart: docs/decisions/0021."""

_LEAST_CHUNKS = 32

_TOLD_SECONDS = 0.05
"""How often `read_into` tells of bytes."""

_log = logging.getLogger("weight_readers.threaded")


class ThreadedReader:
    """Reads with several threads into tensors of their own, or of the caller's; lifetime `OWNED`.

    num_threads: at least 1, never more than there are requests. The default is 4, or fewer where this process
        has fewer CPUs to itself (affinity, cgroup quota, ranks on the node).
    chunk_bytes: the largest request, in bytes. By default 8 MiB, and a 32nd of what `read_into` reads as a whole
        through the page cache into contiguous targets, where that is more, up to 32 MiB.
    max_in_flight_bytes: how much may be read ahead of the consumer of `iter_weights`, plus one tensor.
    direct_io: ``off``, ``on`` (refused where the file system has none), or ``auto``: bypass the page cache for
        files that are not in it.
    huge_pages: ask the kernel for huge pages for tensors that `iter_weights` makes, from 4 MiB on. By default the
        system's own setting decides.
    """

    info: ReaderInfo
    selection: Selection | None

    def __init__(
        self,
        *,
        num_threads: int | None = None,
        chunk_bytes: int | None = None,
        max_in_flight_bytes: int = 256 * MIB,
        direct_io: str = "off",
        huge_pages: bool = False,
    ) -> None:
        self.info = INFO
        self.selection = None
        self._options = Options(
            num_threads=num_threads,
            chunk_bytes=chunk_bytes,
            max_in_flight_bytes=max_in_flight_bytes,
            direct_io=direct_io,
            huge_pages=huge_pages,
        )
        self._headers = HeaderCache()

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Check every header. Raises `CheckpointProblems` listing all that is wrong, over all files."""
        return self._headers.read(files).meta

    def iter_weights(
        self,
        files: Files,
        *,
        device: str = "cpu",
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorPart] | None = None,
        clone_tensors: bool = True,
        on_progress: Progress | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield ``(name, tensor)`` shard by shard in natural order, by offset within each, whatever the threads do.

        Only the wanted ranges are read. Every tensor is the consumer's own. Raises CheckpointError before the
        first tensor for whatever the headers show; a read that fails is raised at the first tensor it leaves
        unread, after all those before it.
        """
        where = placement(device)
        known = self._headers.read(files)
        plans = plan(known.meta, known.states, key_filter, slices or {})
        return self._iterate(plans, where, on_progress)

    def _iterate(
        self, plans: Sequence[FilePlan], device: torch.device, on_progress: Progress | None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        loads = fresh_loads(plans, device, huge_pages=self._options.huge_pages)
        limit = _for_tensors(self._options.max_in_flight_bytes) if device.type == "cpu" else IN_FLIGHT_BYTES
        stats = ReadStats(bytes_wanted=bytes_wanted(plans))
        opener = direct.Opener(self._options.direct_io, plans)
        with self._engine(plans, loads, opener, limit, patience=PATIENCE_SECONDS) as engine:
            index = 0
            for load in engine.loads():
                for place in load.places:
                    engine.wait(index)
                    place.deliver()
                    engine.release(index)
                    index += 1
                if on_progress is not None:
                    read = stats.bytes_read + load.wanted.nbytes
                    stats = replace(stats, tensors=stats.tensors + 1, bytes_read=read, decisions=opener.decisions)
                    on_progress(stats)
                # No name here for the tensor: it is the consumer's, also while this generator rests.
                yield load.wanted.name, load.take()

    def read_into(
        self,
        files: Files,
        targets: Mapping[str, torch.Tensor],
        *,
        slices: Mapping[str, TensorPart] | None = None,
        on_progress: Progress | None = None,
    ) -> ReadStats:
        """Fill ``targets``, by checkpoint name, with whole tensors or the ``slices`` of them.

        Contiguous targets in host memory are read into directly, others through at most 32 MiB of staging per
        device. Raises before any byte is written: TargetMismatchError where a name is not in the files, a dtype
        or shape does not match or two targets share memory, TypeError for what has no memory to write to.
        A `CheckpointError` later on names in ``written`` the targets that may have been written to.
        """
        known = self._headers.read(files)
        plans, plain = checked_plans(
            targets, known.meta, lambda: plan(known.meta, known.states, targets.__contains__, slices or {})
        )
        written = Written(into_loads(plans, targets, plain))
        opener = direct.Opener(self._options.direct_io, plans)
        # What was written is asked once the engine has ended: until then its threads write.
        try:
            chunk = self._chunk_bytes(plans, in_place=len(plain) == len(targets))
            with self._engine(plans, written, opener, IN_FLIGHT_BYTES, chunk) as engine, torch.inference_mode():
                return _fill(engine, written, opener, bytes_wanted(plans), on_progress)
        except CheckpointError as error:
            error.written = written.names
            raise
        finally:
            tell_autograd(targets[name] for name in written.names)

    def _chunk_bytes(self, plans: Sequence[FilePlan], *, in_place: bool) -> int:
        """The largest request of `read_into`; ``in_place`` where nothing is staged."""
        if not in_place or self._options.direct_io != "off" or any(plan.partial for plan in plans):
            return _CHUNK_BYTES
        return min(_LONG_CHUNK_BYTES, max(_CHUNK_BYTES, bytes_wanted(plans) // _LEAST_CHUNKS))

    def _engine(
        self,
        plans: Sequence[FilePlan],
        loads: Iterable[L],
        opener: direct.Opener,
        limit: int,
        chunk_bytes: int = _CHUNK_BYTES,
        *,
        patience: float | None = None,
    ) -> Engine[L]:
        engine = Engine(
            loads,
            chunk_bytes=self._options.chunk_bytes or chunk_bytes,
            ranges=sum(ranges_of(plan.wanted) for plan in plans),
            threads=self._options.threads,
            limit=limit,
            read=direct.read,
            open_file=opener.open,
            patience=patience,
        )
        _log.debug("%d tensors by %d threads", sum(len(plan.wanted) for plan in plans), engine.threads)
        return engine


def _for_tensors(in_flight: int) -> int:
    """What tensors may take of the bytes in flight: threads and the memory between tensors need some, too."""
    return max(in_flight - MIB, in_flight // 2)


def _fill(
    engine: Engine[IntoLoad],
    written: Written,
    opener: direct.Opener,
    bytes_wanted: int,
    on_progress: Progress | None,
) -> ReadStats:
    """Wait for the targets in turn, telling of bytes as they arrive."""
    index = told = tensors = 0
    due = 0.0

    def stats(bytes_read: int) -> ReadStats:
        return ReadStats(tensors=tensors, bytes_wanted=bytes_wanted, bytes_read=bytes_read, decisions=opener.decisions)

    def tell() -> None:
        nonlocal told, due
        if on_progress is not None and engine.bytes_read > told and time.monotonic() >= due:
            told, due = engine.bytes_read, time.monotonic() + _TOLD_SECONDS
            on_progress(stats(told))

    for places, whole in steps(engine.loads()):
        while not engine.wait(index, count=len(places), seconds=_TOLD_SECONDS if on_progress else None):
            tell()
        for place in places:
            place.deliver()
        engine.release(index, count=len(places))
        index += len(places)
        written.finish(whole)
        tensors += len(whole)
        tell()
    final = stats(engine.bytes_read)
    if on_progress is not None:
        on_progress(final)
    return final
