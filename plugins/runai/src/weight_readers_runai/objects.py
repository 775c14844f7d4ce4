# SPDX-License-Identifier: Apache-2.0
"""Objects of a store as the streamer reads them: headers by ranges, tensors the native way, and watched meanwhile."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from weight_readers import CheckpointError, CheckpointMeta, UnreadableFileError
from weight_readers.reader import Files
from weight_readers_files import FilePlan, natural_order
from weight_readers_runai import refusals
from weight_readers_runai.options import DEFAULT_MEMORY_LIMIT, Options
from weight_readers_runai.store import ObjectState, Store
from weight_readers_runai.streamer import Streamer
from weight_readers_runai.uris import Uri
from weight_readers_runai.window import SHORT
from weight_readers_safetensors import read_headers

FIRST_BYTES = 64 << 10
"""Read at once of each object: most headers are shorter."""
_MAX_THREADS = 8
_BLOCK_BYTES = 8 << 20
_FEWER_BYTES = 15


@dataclass(frozen=True)
class KnownObjects:
    """Headers, and the state each object was in before its header was read."""

    store: Store
    states: Mapping[str, ObjectState]
    meta: CheckpointMeta


class ObjectHeaders:
    """The headers of the objects that were asked for last, kept as long as those are the same."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._last: KnownObjects | None = None

    def read(self, files: Files) -> KnownObjects:
        """Headers as of local files: the same rules and the same errors. Each object is asked for its state first."""
        paths = natural_order(files)
        states = self._states(paths)
        last = self._last
        if last is not None and last.states == states and [file.path for file in last.meta.files] == paths:
            return last
        meta = read_headers(paths, lambda path: self._open(path, states))
        self._last = known = KnownObjects(self.store, states, meta)
        return known

    def _states(self, paths: Sequence[str]) -> dict[str, ObjectState]:
        """Of those that can be looked at; reading the headers says what is wrong with the others."""
        with ThreadPoolExecutor(min(_MAX_THREADS, len(paths)), thread_name_prefix="object-state") as pool:
            found = pool.map(self._state, paths)
            return {path: state for path, state in zip(paths, found, strict=True) if state is not None}

    def _state(self, path: str) -> ObjectState | None:
        try:
            return self.store.state(_uri(path))
        except CheckpointError:
            return None

    @contextmanager
    def _open(self, path: str, states: Mapping[str, ObjectState]) -> Iterator[io.RawIOBase]:
        uri = _uri(path)
        state = states.get(path) or self.store.state(uri)
        with ObjectFile(self.store, uri, state) as file:
            yield file


class ObjectFile(io.RawIOBase):
    """An object as a file that is read from its beginning: one request for its first bytes, more where needed."""

    def __init__(self, store: Store, uri: Uri, state: ObjectState) -> None:
        self._store = store
        self._uri = uri
        self._size = state.nbytes
        self._state = state
        self._at = 0
        self._start = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        wanted = max(0, self._size - self._at if size < 0 else min(size, self._size - self._at))
        if not self._start and wanted:
            self._start = self._store.read(self._uri, 0, min(FIRST_BYTES, self._size), self._state)
        data = self._start[self._at : self._at + wanted]
        self._at += len(data)
        if left := wanted - len(data):
            data += self._store.read(self._uri, self._at, left, self._state)
            self._at += left
        return data


class StoredObjects:
    """What is wanted of objects. Requests are exact, since every byte crosses a network."""

    guarded = True
    window = DEFAULT_MEMORY_LIMIT // 2
    """The native client of S3 takes some 170 MiB besides."""
    congruent = False
    gap = 0
    _used_in: int | None = None

    def __init__(self, store: Store, states: Mapping[str, ObjectState], options: Options) -> None:
        self._store = store
        self._states = states
        self._options = options

    def open(self) -> Streamer:
        """A session that is told the settings which the headers were read with."""
        self._refuse_fork()
        # One request per range of ours, which is what `guard` relies on.
        environment = {"RUNAI_STREAMER_CHUNK_BYTESIZE": str(_BLOCK_BYTES), **self._options.threads()}
        return Streamer(environment | self._store.settings.native(), keep_environment=True)

    def failure(self, code: int | None, words: str, path: str, tensor: str) -> CheckpointError:
        uri, settings = _uri(path), self._store.settings
        error = self._failure(code, words, uri) if code is not None else None
        found = error or refusals.silent(uri, settings, self._options.timeout)
        found.tensor = tensor
        return found

    def _failure(self, code: int, words: str, uri: Uri) -> CheckpointError:
        """Ask again what is wrong: the library's word for it is the same for everything."""
        settings, known = self._store.settings, self._states.get(str(uri))
        try:
            now = self._store.state(uri)
            if known is not None:
                known.require(now, uri)
            if now.nbytes:
                self._store.read(uri, 0, 1)
        except CheckpointError as error:
            return error
        if code in (SHORT, _FEWER_BYTES):
            return UnreadableFileError(
                "the store sent fewer bytes than it was asked for",
                path=str(uri),
                found=f"{words or 'the end of a range is missing'}; {settings}",
                fix="What answers there (a proxy?) cuts ranged responses: see its logs",
            )
        return refusals.native(uri, words, settings)

    def check(self, plan: FilePlan, tensor: str, *, last: bool) -> None:
        """Raise FileChangedError, before the last tensor of an object, unless it is as its header was read."""
        known, uri = self._states.get(plan.path), _uri(plan.path)
        if last and known is not None:
            known.require(self._store.state(uri), uri, tensor)

    def _refuse_fork(self) -> None:
        used = StoredObjects._used_in
        if used is not None and used != os.getpid():
            raise RuntimeError(
                "object storage was streamed in the parent of this forked process, and the native client does not "
                "survive a fork: start the process with spawn or forkserver"
            )
        StoredObjects._used_in = os.getpid()


def _uri(path: str) -> Uri:
    uri = Uri.parse(path)
    if uri is None:
        raise ValueError(f"{path!r} is no URI of an object store")
    return uri
