# SPDX-License-Identifier: Apache-2.0
"""Reader ``safetensors``: views of memory-mapped files, in file order."""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from weight_readers import (
    CheckpointError,
    CheckpointMeta,
    CheckpointProblems,
    Feature,
    Lifetime,
    MissingTensorError,
    ReaderInfo,
    ReadStats,
    Selection,
    TensorMeta,
    TensorSlice,
    Writes,
)
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_mmap import tensors
from weight_readers_mmap.plugin import INFO
from weight_readers_mmap.prefetch import ReadAhead
from weight_readers_mmap.segments import segments
from weight_readers_mmap.source import Source, will_need
from weight_readers_safetensors import read_headers, wanted_ranges

MAX_PREFETCH_THREADS = 64


@dataclass(frozen=True)
class _Plan:
    """The wanted tensors of one file by offset, and the part wanted of each."""

    path: str
    wanted: Sequence[TensorMeta]
    slices: Mapping[str, TensorSlice]
    partial: bool

    def nbytes(self, meta: TensorMeta) -> int:
        return sum(length for _, length in wanted_ranges(meta, self.slices.get(meta.name)))


class MappedReader:
    """Yields views of memory-mapped safetensors files; lifetime `MAPPED`.

    A view is valid as long as it lives and nobody writes to the file; files are replaced by rename, never in
    place. Tensors that lie unaligned in the file are copied, so that every yielded tensor is aligned.

    readonly: map without write permission. A write into a tensor then ends the process, where the default
        private mapping turns each written page into anonymous memory. The file never changes either way.
    copy: read into memory of its own instead of mapping (lifetime `OWNED`); nothing depends on the file then.
    prefetch: number of threads, 0 to 64, that read the wanted ranges ahead of the consumer.
    """

    info: ReaderInfo
    selection: Selection | None

    def __init__(self, *, readonly: bool = False, copy: bool = False, prefetch: int = 0) -> None:
        _check_options(readonly=readonly, copy=copy, prefetch=prefetch)
        self.info = _info(readonly=readonly, copy=copy)
        self.selection = None
        self._readonly = readonly
        self._copy = copy
        self._prefetch = prefetch
        self._known: tuple[object, CheckpointMeta] | None = None
        if readonly:
            _spend_torch_warning()

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Check every header. Raises `CheckpointProblems` listing all that is wrong, over all files."""
        known, key = self._known, _identity(files)
        if known is not None and key is not None and known[0] == key:
            return known[1]
        meta = read_headers(files)
        self._known = (key, meta)
        return meta

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
        """Yield ``(name, tensor)`` shard by shard in natural order, by offset within each.

        With a filter or slices exactly the wanted ranges are asked of the file. A slice of an inner dimension
        is a strided view. Another ``device`` is reached by a copy of each view. Raises CheckpointError before
        the first tensor for whatever the headers show, FileChangedError when a file changes meanwhile.
        """
        plans = _plans(self.read_meta(files), key_filter, slices or {})
        return self._iterate(plans, torch.device(device), on_progress)

    def _iterate(
        self, plans: Sequence[_Plan], device: torch.device, on_progress: Progress | None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        stats = ReadStats(bytes_wanted=sum(plan.nbytes(meta) for plan in plans for meta in plan.wanted))
        with ExitStack() as stack:
            ahead = self._read_ahead(plans, stack)
            for plan in plans:
                with Source(plan.path, readonly=self._readonly) as source:
                    for meta, tensor, copied in self._tensors(plan, source):
                        source.check(meta.name)
                        nbytes = plan.nbytes(meta)
                        stats = replace(
                            stats,
                            tensors=stats.tensors + 1,
                            bytes_read=stats.bytes_read + nbytes,
                            copied=stats.copied + copied,
                        )
                        if ahead is not None:
                            ahead.advance(nbytes)
                        if on_progress is not None:
                            on_progress(stats)
                        yield meta.name, tensor if device.type == "cpu" else tensor.to(device)
                    source.check()

    def _tensors(self, plan: _Plan, source: Source) -> Iterator[tuple[TensorMeta, torch.Tensor, bool]]:
        """Each tensor of one file, and whether it had to be copied although this reader maps."""
        for run in segments(plan.wanted):
            mapped, base = self._map(run, source)
            for meta in run:
                part = plan.slices.get(meta.name)
                if meta.nbytes == 0:
                    yield meta, tensors.empty(meta, part), False
                elif mapped is None or not tensors.is_aligned(meta):
                    yield meta, tensors.read(meta, source, part), mapped is not None
                else:
                    if plan.partial:
                        for offset, length in wanted_ranges(meta, part):
                            will_need(mapped, offset - base, length)
                    yield meta, tensors.view(meta, mapped, meta.offset - base, part), False

    def _map(self, run: Sequence[TensorMeta], source: Source) -> tuple[mmap.mmap | None, int]:
        """One mapping over the run, and the file offset it begins at; none where there is nothing to map."""
        begin, end = run[0].offset, run[-1].offset + run[-1].nbytes
        if self._copy or begin == end:
            return None, begin
        mapped, skipped = source.map(begin, end - begin)
        return mapped, begin - skipped

    def _read_ahead(self, plans: Sequence[_Plan], stack: ExitStack) -> ReadAhead | None:
        if not self._prefetch:
            return None
        ranges = (
            (plan.path, offset, length)
            for plan in plans
            for meta in plan.wanted
            for offset, length in wanted_ranges(meta, plan.slices.get(meta.name))
        )
        ahead = ReadAhead(ranges, threads=self._prefetch)
        stack.callback(ahead.close)
        return ahead


def _check_options(*, readonly: object, copy: object, prefetch: object) -> None:
    for name, value in (("readonly", readonly), ("copy", copy)):
        if not isinstance(value, bool):
            raise TypeError(f"option {name!r} of reader 'safetensors' must be True or False, not {value!r}")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int):
        raise TypeError(f"option 'prefetch' of reader 'safetensors' must be a number of threads, not {prefetch!r}")
    if not 0 <= prefetch <= MAX_PREFETCH_THREADS:
        raise ValueError(
            f"option 'prefetch' of reader 'safetensors' must be 0 to {MAX_PREFETCH_THREADS} threads, not {prefetch}"
        )
    if readonly and copy:
        raise ValueError("options 'readonly' and 'copy' of reader 'safetensors' exclude each other: a copy is writable")


def _info(*, readonly: bool, copy: bool) -> ReaderInfo:
    """The declaration of this instance: options change what it yields."""
    if copy:
        return replace(
            INFO, lifetime=Lifetime.OWNED, writes=Writes.OWN, features=INFO.features - {Feature.FILE_MAPPING}
        )
    return replace(INFO, writes=Writes.READ_ONLY) if readonly else INFO


def _plans(meta: CheckpointMeta, key_filter: KeyFilter | None, slices: Mapping[str, TensorSlice]) -> list[_Plan]:
    for name in slices:
        if name not in meta:
            raise MissingTensorError(
                "a slice was asked of a tensor that is not there",
                path=meta.files[0].path if meta.files else "",
                tensor=name,
            )
    wanted: dict[str, list[TensorMeta]] = {file.path: [] for file in meta.files}
    for name, tensor in meta.items():
        if key_filter is None or key_filter(name):
            wanted[tensor.file].append(tensor)
    _check_dtypes(wanted)
    partial = bool(slices) or key_filter is not None
    return [
        _Plan(path, sorted(tensors, key=lambda t: t.offset), slices, partial)
        for path, tensors in wanted.items()
        if tensors
    ]


def _check_dtypes(wanted: Mapping[str, Sequence[TensorMeta]]) -> None:
    """Refuse what torch cannot hold before the first tensor is handed out, naming every such tensor."""
    problems: list[CheckpointError] = []
    for meta in (meta for metas in wanted.values() for meta in metas):
        try:
            tensors.dtype_of(meta)
        except CheckpointError as error:
            problems.append(error)
    if problems:
        CheckpointProblems.raise_any(problems, path=problems[0].path)


def _identity(files: Files) -> object | None:
    """Something that is equal exactly while the files are unchanged; None where they cannot be looked at."""
    try:
        status = [(os.fspath(file), os.stat(file)) for file in files]
    except (OSError, TypeError):
        return None
    return tuple((path, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for path, s in status)


def _spend_torch_warning() -> None:
    """torch warns once per process that a buffer is not writable; here that is what was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)
