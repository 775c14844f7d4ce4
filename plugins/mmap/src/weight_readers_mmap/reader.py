# SPDX-License-Identifier: Apache-2.0
"""Reader ``safetensors``: views of memory-mapped files, in file order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from weight_readers import CheckpointMeta, Feature, Lifetime, ReaderInfo, Selection, TensorSlice, Writes
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_mmap.passes import Pass
from weight_readers_mmap.plugin import INFO
from weight_readers_safetensors import HeaderCache, plan

MAX_PREFETCH_THREADS = 64


class MappedReader:
    """Yields views of memory-mapped safetensors files; lifetime `MAPPED`.

    A view is valid as long as it lives and nobody writes to the file; files are replaced by rename, never in
    place. Tensors that lie unaligned in the file are copied, so that every yielded tensor is aligned.

    readonly: map without write permission. A write into a tensor then ends the process, where the default
        private mapping turns each written page into anonymous memory. The file never changes either way.
    copy: read into memory of its own instead of mapping (lifetime `OWNED`); nothing depends on the file then.
    prefetch: number of threads, 0 to 64, that read the wanted ranges ahead of the consumer. What is handed out
        was read once without an error then; 0 leaves reading to the page faults of the consumer.
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
        """Yield ``(name, tensor)`` shard by shard in natural order, by offset within each.

        With a filter or slices exactly the wanted ranges are asked of the file. A slice of an inner dimension
        is a strided view. Another ``device`` is reached by a copy of each view. Raises CheckpointError before
        the first tensor for whatever the headers show, FileChangedError when a file changes meanwhile.
        """
        known = self._headers.read(files)
        plans = plan(known.meta, known.states, key_filter, slices or {})
        reading = Pass(
            plans,
            readonly=self._readonly,
            copy=self._copy,
            prefetch=self._prefetch,
            device=torch.device(device),
            on_progress=on_progress,
        )
        return reading.tensors()


def _check_options(*, readonly: object, copy: object, prefetch: object) -> None:
    for name, value in (("readonly", readonly), ("copy", copy)):
        if not isinstance(value, bool):
            raise TypeError(f"option {name!r} of reader 'safetensors' must be True or False, not {value!r}")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int):
        raise TypeError(
            f"option 'prefetch' of reader 'safetensors' must be 0 to {MAX_PREFETCH_THREADS} threads, not {prefetch!r}"
        )
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
