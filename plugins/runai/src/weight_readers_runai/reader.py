# SPDX-License-Identifier: Apache-2.0
"""Reader ``runai_streamer``: the Run:ai Model Streamer reads exact ranges straight into tensors, in file order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from weight_readers import (
    CheckpointMeta,
    FileVersion,
    ReaderInfo,
    ReadStats,
    Selection,
    StoredDigest,
    StoredFile,
    TensorPart,
)
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_files import FilePlan, KnownHeaders, Range, natural_order
from weight_readers_files.devices import placement
from weight_readers_files.plans import bytes_wanted
from weight_readers_files.targets import checked_plans
from weight_readers_runai import checksums
from weight_readers_runai.fetching import fetch
from weight_readers_runai.files import LocalFiles
from weight_readers_runai.into import Filled, reached_directly, read_into
from weight_readers_runai.objects import KnownObjects, ObjectHeaders, StoredObjects
from weight_readers_runai.options import Options
from weight_readers_runai.plugin import declared
from weight_readers_runai.requests import loads_of
from weight_readers_runai.session import Source, opened, refused, window_of
from weight_readers_runai.store import ObjectState, Store
from weight_readers_runai.stores import store_of
from weight_readers_runai.streamer import StreamerError
from weight_readers_runai.uris import Uri, common_scheme
from weight_readers_safetensors import HeaderCache, plan


class StreamerReader:
    """Streams with the Run:ai Model Streamer into tensors of their own; lifetime `OWNED`, without a clone.

    memory_limit: how many bytes may be held ahead of the consumer: at least the largest tensor. The default is
        128 MiB (64 MiB from a store, whose client takes some 170 MiB besides), or the largest tensor if that is more.
    concurrency: threads of the native library; by default what RUNAI_STREAMER_CONCURRENCY says, or 8.
    order: ``file-offset``, or ``completion``: whatever is read first.
    timeout: seconds without any answer after which reading fails.
    direct_io: ``auto`` (past the page cache where the files are not in it), ``on`` or ``off``.
    endpoint, region, path_style, unsigned, profile, project: of object storage, for the listing and the
        streaming alike; by default what the variables of each kind say (`stores`).
    """

    info: ReaderInfo
    selection: Selection | None

    def __init__(
        self,
        *,
        memory_limit: int | None = None,
        concurrency: int | None = None,
        order: str = "file-offset",
        timeout: float = 30.0,
        direct_io: str = "auto",
        endpoint: str | None = None,
        region: str | None = None,
        path_style: bool | None = None,
        unsigned: bool | None = None,
        profile: str | None = None,
        project: str | None = None,
    ) -> None:
        self._options = Options(
            memory_limit=memory_limit,
            concurrency=concurrency,
            order=order,
            timeout=timeout,
            direct_io=direct_io,
            endpoint=endpoint,
            region=region,
            path_style=path_style,
            unsigned=unsigned,
            profile=profile,
            project=project,
        )
        self.info = self._options.declared(declared())
        self.selection = None
        self._headers = HeaderCache()
        self._objects: dict[str, ObjectHeaders] = {}
        self._making = threading.Lock()

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Check every header. Raises `CheckpointProblems` listing all that is wrong, over all files."""
        meta = self._known(files).meta
        return CheckpointMeta(meta, meta.files)

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
        """Yield ``(name, tensor)`` shard by shard in natural order, by offset within each (or as they complete).

        Only the wanted ranges are asked of the library; every tensor is the consumer's own. Raises CheckpointError
        before the first tensor for whatever the headers show, ValueError for a ``memory_limit`` below the largest
        tensor, and FileChangedError for a file that is another by the time its tensors are handed out.
        """
        where = placement(device)
        known = self._known(files)
        states = {} if isinstance(known, KnownObjects) else known.states
        plans = plan(known.meta, states, key_filter, slices or {})
        self._options.limit(plans)
        return self._iterate(self._source(known, plans), plans, where, on_progress)

    def read_into(
        self,
        files: Files,
        targets: Mapping[str, torch.Tensor],
        *,
        slices: Mapping[str, TensorPart] | None = None,
        on_progress: Progress | None = None,
    ) -> ReadStats:
        """Fill ``targets``, by checkpoint name, with whole tensors or the ``slices`` of them.

        Contiguous targets in host memory are read into directly, others in blocks of at most 8 MiB that are copied.
        At most ``memory_limit`` bytes and two blocks are under way. Raises before any byte is written:
        TargetMismatchError where a name is not in the files, a dtype or shape does not match or two targets share
        memory, TypeError for what has no memory to write to. A `CheckpointError` later on names in ``written``
        the targets that may have been written to; what those hold is undefined.
        """
        known = self._known(files)
        states = {} if isinstance(known, KnownObjects) else known.states
        plans, plain = checked_plans(
            targets, known.meta, lambda: plan(known.meta, states, targets.__contains__, slices or {})
        )
        if not plans:
            return ReadStats()
        source = self._source(known, plans, into_targets=True)
        if source.congruent:
            plain = reached_directly(plans, plain)
        filled = Filled(bytes_wanted(plans), on_progress, source.decisions)
        limit = self._options.memory_limit or source.window
        read_into(source, plans, targets, plain, filled, limit=limit, timeout=self._options.timeout)
        return filled.stats

    def _source(
        self,
        known: KnownHeaders[CheckpointMeta] | KnownObjects,
        plans: Sequence[FilePlan],
        *,
        into_targets: bool = False,
    ) -> Source:
        if isinstance(known, KnownObjects):
            return StoredObjects(known.store, known.states, self._options)
        return LocalFiles(plans, self._options, into_targets=into_targets)

    # --- object stores ------------------------------------------------------------------------------------

    def list_folder(self, folder: str) -> list[StoredFile]:
        """What lies directly under a prefix (``s3://bucket/prefix``), taken as a folder; empty if there is nothing."""
        uri = self._uri(folder)
        return self._store(uri.scheme).list_folder(uri)

    def read_start(self, path: str, limit: int) -> bytes:
        """The first ``limit`` bytes of an object, or all if it has fewer."""
        uri = self._uri(path)
        store = self._store(uri.scheme)
        state = store.state(uri)
        return store.read(uri, 0, min(limit, state.nbytes), state)

    def stored_digest(self, path: str) -> StoredDigest:
        """The checksum of the whole object that the store keeps, or why there is none to compare with."""
        uri = self._uri(path)
        return checksums.stored(self._store(uri.scheme).head_with_checksums(uri))

    def digest(self, path: str, algorithm: str, *, on_bytes: Callable[[int], None] | None = None) -> str:
        """Hex digits of the object's bytes as they arrive by ranges, of one state of it.

        Raises FileChangedError where it changes meanwhile, ValueError for an algorithm that is not known.
        """
        uri = self._uri(path)
        return checksums.digest(self._store(uri.scheme), uri, algorithm, on_bytes)

    def place(self, path: str) -> dict[str, str]:
        """Endpoint, region and so on, each with the option or variable it comes from; never a secret."""
        return self._store(self._uri(path).scheme).settings.effective()

    def version(self, path: str) -> FileVersion:
        """Size and ETag of an object."""
        uri = self._uri(path)
        state = self._store(uri.scheme).state(uri)
        return FileVersion(nbytes=state.nbytes, tag=state.etag)

    def fetch(
        self, path: str, ranges: Sequence[Range], write: Callable[[int, memoryview], None], *, version: FileVersion
    ) -> None:
        """Give ``write`` each ``(offset, length)`` of ``ranges`` in pieces of at most 8 MiB as they arrive."""
        uri, state = self._uri(path), ObjectState(version.nbytes, version.tag)
        source = StoredObjects(self._store(uri.scheme), {str(uri): state}, self._options)
        limit = self._options.memory_limit or source.window
        fetch(source, path, ranges, write, limit=limit, timeout=self._options.timeout)

    def _uri(self, path: str) -> Uri:
        uri = Uri.parse(path)
        if uri is None or uri.scheme not in self.info.schemes:
            raise ValueError(f"{path!r} is no URI that reader {self.info.name!r} reads: {sorted(self.info.schemes)}")
        return uri

    def _store(self, scheme: str) -> Store:
        return self._headers_in(scheme).store

    def _headers_in(self, scheme: str) -> ObjectHeaders:
        with self._making:
            if scheme not in self._objects:
                store = store_of(scheme, self._options.store(), self._options.timeout)
                self._objects[scheme] = ObjectHeaders(store)
            return self._objects[scheme]

    def _known(self, files: Files) -> KnownHeaders[CheckpointMeta] | KnownObjects:
        """The headers. Raises ValueError where the files lie in several kinds of place, or in one not read here."""
        paths = natural_order(files)
        scheme = common_scheme(paths)
        if scheme == "file":
            return self._headers.read(paths)
        self._uri(paths[0])
        return self._headers_in(scheme).read(paths)

    def _iterate(
        self, source: Source, plans: Sequence[FilePlan], device: torch.device, on_progress: Progress | None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        loads = loads_of(plans)
        if not loads:
            return
        left = Counter(load.plan.path for load in loads)
        stats = ReadStats(bytes_wanted=bytes_wanted(plans), decisions=source.decisions)
        streamer = opened(source, plans)
        limit = self._options.limit(plans, source.window)
        in_order = self._options.order == "file-offset"
        window = window_of(source, loads, streamer, limit=limit, in_order=in_order, timeout=self._options.timeout)
        try:
            for arriving in window.arrivals():
                path, wanted = arriving.plan.path, arriving.wanted
                left[path] -= 1
                source.check(arriving.plan, wanted.name, last=not left[path])
                if on_progress is not None:
                    stats = replace(stats, tensors=stats.tensors + 1, bytes_read=stats.bytes_read + wanted.nbytes)
                    on_progress(stats)
                # No name here for the tensor: it is the consumer's, also while this generator rests.
                yield wanted.name, arriving.take(device)
        except StreamerError as error:
            raise refused(plans, error) from error
        finally:
            streamer.close(**({"patience": 0.5} if window.timed_out else {}))
