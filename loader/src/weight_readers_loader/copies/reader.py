# SPDX-License-Identifier: Apache-2.0
"""A reader of local files as a reader of stored ones: it sees copies, and everybody else sees URIs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from weight_readers import (
    CheckpointError,
    CheckpointMeta,
    FetchesRanges,
    FileChangedError,
    FileVersion,
    ReadStats,
    Selection,
    TensorMeta,
    TensorPart,
    TruncatedFileError,
    UnreadableFileError,
    WeightReader,
)
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_loader.copies.cache import folder_of, refused_by_disk
from weight_readers_loader.copies.naming import Names
from weight_readers_loader.copies.pool import Pool
from weight_readers_loader.copies.spans import Span, spans_of, total
from weight_readers_loader.resolve.formats import file_format

if TYPE_CHECKING:
    import torch

FIRST_BYTES = 1 << 20
_GROWTH = 4
_COPY_BYTES = 8 << 20


class CopiesReader:
    """``reader`` over copies in ``cache``, which ``fetcher`` brings; ``format`` is that of all the files."""

    selection: Selection | None

    def __init__(self, reader: WeightReader, fetcher: FetchesRanges, *, format: str, place: str, cache: Path) -> None:  # noqa: A002
        self.info = reader.info
        self.selection = reader.selection
        self._reader = reader
        self._fetcher = fetcher
        self._format = format
        self._place = place
        self._cache = cache
        self._versions: dict[str, FileVersion] = {}
        self._headers: dict[str, int] = {}

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Headers only: of a format that begins with them, the first MiB of each file, and more where it is longer."""
        paths = [os.fspath(file) for file in files]
        headers = {path: [(0, self._header_bytes(path))] for path in paths}
        with self._holding(headers) as (local, names), names.restored():
            return names.restore(self._reader.read_meta(local))

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
        """As the reader of the copies. What is wanted and not in them yet is fetched before the first tensor."""
        meta = self.read_meta(files)
        chosen = [tensor for name, tensor in meta.items() if key_filter is None or key_filter(name)]
        names = {tensor.name for tensor in chosen}
        paths = [os.fspath(file) for file in files]

        def read(local: Sequence[str], progress: Progress | None) -> Iterator[tuple[str, torch.Tensor]]:
            return self._reader.iter_weights(
                local,
                device=device,
                key_filter=None if key_filter is None else names.__contains__,
                slices=slices,
                clone_tensors=clone_tensors,
                on_progress=progress,
            )

        headers = {path: [(0, self._header_bytes(path))] for path in paths}
        # Whatever is wrong with what was asked for shows before anything is fetched.
        with self._holding(headers) as (local, restoring), restoring.restored():
            _close(read(local, None))
        wanted = headers if key_filter is not None or slices else {path: self._all(path) for path in paths}
        for tensor in chosen:
            wanted[tensor.file] = [*wanted[tensor.file], *spans_of(tensor, (slices or {}).get(tensor.name))]
        return self._iterate(wanted, read, _Told(on_progress, _nbytes(chosen, slices)))

    def _iterate(
        self,
        wanted: Mapping[str, Sequence[Span]],
        read: Callable[[Sequence[str], Progress], Iterator[tuple[str, torch.Tensor]]],
        told: _Told,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        with self._holding(wanted, told.arrived) as (local, names), names.restored():
            weights = read(local, told.read)
            try:
                yield from weights
            finally:
                _close(weights)

    def _all(self, path: str) -> list[Span]:
        return [(0, self._version(path).nbytes)]

    # --- headers ------------------------------------------------------------------------------------------

    def _header_bytes(self, path: str) -> int:
        """How much of the file holds its header. The version of the file is looked at each time."""
        version = self._version(path)
        if not file_format(self._format).header_first:
            return version.nbytes
        if path not in self._headers:
            count = min(FIRST_BYTES, version.nbytes)
            while count < version.nbytes and not self._holds_header(path, count):
                count = min(count * _GROWTH, version.nbytes)
            self._headers[path] = count
        return self._headers[path]

    def _holds_header(self, path: str, count: int) -> bool:
        """Whether the first ``count`` bytes, taken for a file, break off within a tensor and not before.

        Whatever else is wrong with them is wrong with the file too, and so is a length that leads out of the whole
        file: where the copy has holes there are zeros, which lead nowhere.
        """
        with ExitStack() as stack:
            (local,), _ = stack.enter_context(self._holding({path: [(0, count)]}))
            if self._breaks_off(local):
                return True
            stack.enter_context(refused_by_disk(self._cache, path))
            start = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self._cache))) / Path(local).name
            _copy_start(Path(local), start, count)
            return not self._breaks_off(str(start))

    def _breaks_off(self, local: str) -> bool:
        """Whether the file at ``local`` ends before its tensors begin."""
        try:
            self._reader.read_meta([local])
        except CheckpointError as error:
            return any(isinstance(each, TruncatedFileError) and each.tensor is None for each in error.problems)
        return False

    # --- copies -------------------------------------------------------------------------------------------

    @contextmanager
    def _holding(
        self, wanted: Mapping[str, Sequence[Span]], arrived: Callable[[int], None] = lambda count: None
    ) -> Iterator[tuple[list[str], Names]]:
        """The paths of copies that have all that is wanted of each file, and the names to give them back."""
        with ExitStack() as stack:
            local = {
                path: stack.enter_context(self._pool(path).holding(spans, arrived)) for path, spans in wanted.items()
            }
            yield list(local.values()), Names(local)

    def _pool(self, path: str) -> Pool:
        version = self._versions[path]
        return Pool(self._fetcher, path, version, folder_of(self._cache, path, version, self._place))

    def _version(self, path: str) -> FileVersion:
        """The version that was seen first. Raises FileChangedError where there is another by now."""
        now = self._fetcher.version(path)
        known = self._versions.setdefault(path, now)
        if not now.tag:
            raise UnreadableFileError(
                "the store does not tell versions of the file apart, so a copy of it could be an old one",
                path=path,
                expected="an ETag",
                found="none",
                fix="Download the file, and give its path",
            )
        if now != known:
            raise FileChangedError(
                "the file was changed after the checkpoint was opened",
                path=path,
                expected=f"{known.nbytes} bytes, {known.tag}",
                found=f"{now.nbytes} bytes, {now.tag}",
                fix="Open it again once its writer has finished",
            )
        return known


class _Told:
    """Progress of a read that is fetched first: the bytes count once, when they arrive or when they are read."""

    def __init__(self, on_progress: Progress | None, nbytes: int) -> None:
        self._on_progress = on_progress
        self._fetched = ReadStats(bytes_wanted=nbytes)

    def arrived(self, count: int) -> None:
        read = min(self._fetched.bytes_read + count, self._fetched.bytes_wanted)
        self._fetched = replace(self._fetched, bytes_read=read)
        if self._on_progress is not None:
            self._on_progress(self._fetched)

    def read(self, stats: ReadStats) -> None:
        if self._on_progress is not None:
            fetched = min(self._fetched.bytes_read, stats.bytes_wanted)
            self._on_progress(replace(stats, bytes_read=max(stats.bytes_read, fetched)))


def _nbytes(chosen: Sequence[TensorMeta], slices: Mapping[str, TensorPart] | None) -> int:
    return sum(total(spans_of(tensor, (slices or {}).get(tensor.name))) for tensor in chosen)


def _close(weights: object) -> None:
    close = getattr(weights, "close", None)
    if close is not None:
        close()


def _copy_start(source: Path, target: Path, count: int) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        while count and (data := read.read(min(count, _COPY_BYTES))):
            write.write(data)
            count -= len(data)
