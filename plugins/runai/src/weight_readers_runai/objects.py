# SPDX-License-Identifier: Apache-2.0
"""Objects of a store as the streamer reads them: headers by ranges, tensors the native way, and watched meanwhile."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from weight_readers import CheckpointError, CheckpointMeta
from weight_readers.reader import Files
from weight_readers_files import FilePlan, natural_order
from weight_readers_files.threads import Pool
from weight_readers_runai import leaving, native, refusals
from weight_readers_runai.deadline import within
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
_DIAGNOSIS_SECONDS = 4.0
"""To find out why the library failed, beyond the reader's timeout."""


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
        looks = self._looks(paths)
        states = {path: state for path, state in looks.items() if isinstance(state, ObjectState)}
        last = self._last
        if last is not None and last.states == states and [file.path for file in last.meta.files] == paths:
            return last
        meta = read_headers(paths, lambda path: self._open(path, looks[path]))
        self._last = known = KnownObjects(self.store, states, meta)
        return known

    def _looks(self, paths: Sequence[str]) -> dict[str, ObjectState | CheckpointError]:
        """The state of each object, or what is wrong with it: that is for the reading of the headers to say."""
        with Pool(min(_MAX_THREADS, len(paths)), thread_name_prefix="object-state") as pool:
            return dict(zip(paths, pool.map(self._look, paths), strict=True))

    def _look(self, path: str) -> ObjectState | CheckpointError:
        try:
            return self.store.state(_uri(path))
        except CheckpointError as error:
            return error

    @contextmanager
    def _open(self, path: str, look: ObjectState | CheckpointError) -> Iterator[io.RawIOBase]:
        if isinstance(look, CheckpointError):
            raise look
        with ObjectFile(self.store, _uri(path), look) as file:
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
    decisions: tuple[str, ...] = ()

    def __init__(self, store: Store, states: Mapping[str, ObjectState], options: Options) -> None:
        self._store = store
        self._states = states
        self._options = options

    def open(self) -> Streamer:
        """A session that is told the settings which the headers were read with."""
        uri = _uri(next(iter(self._states)))
        native.claim(uri)
        credentials = self._store.credentials(uri)
        # One request per range of ours, which is what `guard` relies on.
        environment = {"RUNAI_STREAMER_CHUNK_BYTESIZE": str(_BLOCK_BYTES), **self._options.threads()}
        settings = self._store.settings
        streamer = Streamer(environment | settings.native(), keep_environment=True)
        if credentials is not None:
            streamer.use_credentials(credentials)
        return streamer

    def failure(self, code: int | None, words: str, path: str, tensor: str, offset: int) -> CheckpointError:
        uri = _uri(path)
        error = self._silence(uri) if code is None else self._failure(code, words, uri, offset)
        error.tensor = tensor
        return error

    def _silence(self, uri: Uri) -> CheckpointError:
        settings, timeout = self._store.settings, self._options.timeout
        return refusals.silent(uri, settings, timeout, behind_another=leaving.is_ending())

    def _failure(self, code: int, words: str, uri: Uri, offset: int) -> CheckpointError:
        """What is wrong, in the words of the store: the library has one for everything."""
        settings = self._store.settings
        store = type(self._store)(settings, _DIAGNOSIS_SECONDS)
        try:
            store.connect(uri)
            within(_DIAGNOSIS_SECONDS, lambda: self._ask_again(store, uri, offset))
        except CheckpointError as error:
            return error
        except TimeoutError:
            words = f"{words or 'the end of a range is missing'}; asked again, the store did not answer soon"
        if code in (SHORT, _FEWER_BYTES):
            return refusals.short(uri, words, settings)
        return refusals.native(uri, words, settings)

    def _ask_again(self, store: Store, uri: Uri, offset: int) -> None:
        """Raise what the store says now of the object, and of the bytes at ``offset``."""
        now, known = store.state(uri), self._states.get(str(uri))
        if known is not None:
            known.require(now, uri)
        if offset < now.nbytes:
            store.read(uri, offset, min(FIRST_BYTES, now.nbytes - offset))
        store.require_here(uri)

    def check(self, plan: FilePlan, tensor: str, *, last: bool) -> None:
        """Raise FileChangedError, before the last tensor of an object, unless it is as its header was read."""
        known, uri = self._states.get(plan.path), _uri(plan.path)
        if last and known is not None:
            self._store.require_same(uri, known, tensor)


def _uri(path: str) -> Uri:
    uri = Uri.parse(path)
    if uri is None:
        raise ValueError(f"{path!r} is no URI of an object store")
    return uri
