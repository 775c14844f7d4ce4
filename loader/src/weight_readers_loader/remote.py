# SPDX-License-Identifier: Apache-2.0
"""The headers of files that are not on this machine: their first bytes are fetched, and tensors are not.

A reader is given stand-ins: sparse files of the true size that hold the beginning only. What it makes of them counts
once the beginning reaches up to the first tensor; an error counts once there is nothing more to fetch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weight_readers import CheckpointError, CheckpointMeta, FileMeta, TensorMeta, UnreadableFileError
from weight_readers_loader.headers import ReadsHeaders
from weight_readers_loader.pool import Pool
from weight_readers_loader.resolve import Layout
from weight_readers_loader.resolve.formats import file_format
from weight_readers_loader.resolve.layouts import Remote

__all__ = ["RemoteHeaders", "headers_of"]

_FIRST_BYTES = 64 << 10
_GROWTH = 4
_MOST_BYTES = 256 << 20
_AT_ONCE = 8


def headers_of(layout: Layout, reader: ReadsHeaders) -> ReadsHeaders:
    """What reads the headers of ``layout`` where its files are: ``reader``, over ranges where they are remote."""
    if layout.remote is None:
        return reader
    sizes = {file.path: file.size for file in (*layout.files, *layout.unindexed)}
    return RemoteHeaders(reader, layout.format, layout.remote, sizes)


@dataclass
class _StandIn:
    path: str
    local: Path
    size: int
    filled: int = 0

    @property
    def ends(self) -> bool:
        return self.filled >= min(self.size, _MOST_BYTES)


class RemoteHeaders:
    """Reads headers as ``reader`` does. All paths that it takes, hands out and names in errors are the remote ones."""

    def __init__(self, reader: ReadsHeaders, form: str, remote: Remote, sizes: Mapping[str, int]) -> None:
        self._reader = reader
        self._format = form
        self._remote = remote
        self._sizes = sizes
        self.info = reader.info

    def read_meta(self, files: Sequence[str | os.PathLike[str]]) -> CheckpointMeta:
        """Raises what ``reader`` raises, and UnreadableFileError for a format whose header is not at the start."""
        paths = [os.fspath(path) for path in files]
        if not file_format(self._format).header_first:
            raise UnreadableFileError(
                f"files of format {self._format} are not described at their start, and the rest is not read from afar",
                path=paths[0],
                fix="Download it (weight-readers verify REF does), or load it.",
            )
        with tempfile.TemporaryDirectory(prefix="weight-readers-") as folder:
            return self._read([self._stand_in(Path(folder), path) for path in paths])

    def _stand_in(self, folder: Path, path: str) -> _StandIn:
        # Beside those of its own folder, and under its own name: the parts of a set look for each other.
        place = folder / path.rpartition("/")[0].replace("/", "%")[-200:]
        place.mkdir(exist_ok=True)
        local = place / path.rpartition("/")[2]
        with open(local, "wb") as file:
            file.truncate(self._sizes[path])
        return _StandIn(path=path, local=local, size=self._sizes[path])

    def _read(self, files: Sequence[_StandIn]) -> CheckpointMeta:
        reach = _FIRST_BYTES
        while True:
            self._fill(files, reach)
            reach *= _GROWTH
            ended = all(file.ends for file in files)
            try:
                meta = self._reader.read_meta([str(file.local) for file in files])
            except CheckpointError as error:
                if ended:
                    raise _renamed(error, files)  # noqa: B904 - the same error, by the names that the caller knows
                continue
            if ended or _within(meta, files):
                return _as_remote(meta, files)

    def _fill(self, files: Iterable[_StandIn], reach: int) -> None:
        short = [file for file in files if not file.ends]
        with Pool(max_workers=_AT_ONCE) as pool:
            list(pool.map(lambda file: self._extend(file, min(reach, file.size, _MOST_BYTES)), short))

    def _extend(self, file: _StandIn, reach: int) -> None:
        data = self._remote.read_range(file.path, file.filled, reach)
        if len(data) != reach - file.filled:
            raise UnreadableFileError(
                "fewer bytes arrived than were asked for",
                path=file.path,
                expected=f"{reach - file.filled} bytes",
                found=f"{len(data)} bytes",
                fix="Try again.",
            )
        with open(file.local, "r+b") as local:
            local.seek(file.filled)
            local.write(data)
        file.filled = reach


def _within(meta: CheckpointMeta, files: Iterable[_StandIn]) -> bool:
    """Whether all that describes the tensors had arrived: it lies before the first of them."""
    first: dict[str, int] = {}
    for tensor in meta.values():
        first[tensor.file] = min(tensor.offset, first.get(tensor.file, tensor.offset))
    return all(file.ends or first.get(str(file.local), file.size) <= file.filled for file in files)


def _as_remote(meta: CheckpointMeta, files: Iterable[_StandIn]) -> CheckpointMeta:
    names = {str(file.local): file.path for file in files}
    tensors = {name: replace(tensor, file=names.get(tensor.file, tensor.file)) for name, tensor in meta.items()}
    return CheckpointMeta(tensors, [_file(file, names) for file in meta.files])


def _file(file: FileMeta, names: Mapping[str, str]) -> FileMeta:
    path = names.get(file.path, file.path)
    notices = tuple(notice.replace(file.path, path) for notice in file.notices)
    return replace(file, path=path, notices=notices)


def _renamed(error: CheckpointError, files: Iterable[_StandIn]) -> CheckpointError:
    names = {str(file.local): file.path for file in files}
    for problem in {id(each): each for each in (error, *error.problems)}.values():
        problem.path = names.get(problem.path, problem.path)
        for field in ("expected", "found", "fix"):
            text = getattr(problem, field)
            if isinstance(text, str):
                setattr(problem, field, _with_names(text, names))
        problem.partial = tuple(_tensor(tensor, names) for tensor in problem.partial)
    return error


def _with_names(text: str, names: Mapping[str, str]) -> str:
    for local, path in names.items():
        text = text.replace(local, path)
    return text


def _tensor(tensor: TensorMeta, names: Mapping[str, str]) -> TensorMeta:
    return replace(tensor, file=names.get(tensor.file, tensor.file))
