# SPDX-License-Identifier: Apache-2.0
"""Reader ``safetensors``: views of memory-mapped files, in file order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from weight_readers import CheckpointMeta, ReaderInfo, Selection, TensorPart
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_files.devices import placement
from weight_readers_files.options import MappingOptions
from weight_readers_files.passes import Pass
from weight_readers_mmap.plugin import INFO
from weight_readers_safetensors import HeaderCache, plan


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
        self._options = MappingOptions(reader=INFO.name, readonly=readonly, copy=copy, prefetch=prefetch)
        self.info = self._options.declared(INFO)
        self.selection = None
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
        """Yield ``(name, tensor)`` shard by shard in natural order, by offset within each.

        With a filter or slices exactly the wanted ranges are asked of the file. A slice of an inner dimension
        is a strided view. Another ``device`` is reached by a copy of each view. Raises CheckpointError before
        the first tensor for whatever the headers show, FileChangedError when a file changes meanwhile.
        """
        where = placement(device)
        known = self._headers.read(files)
        plans = plan(known.meta, known.states, key_filter, slices or {})
        return Pass(plans, self._options, device=where, on_progress=on_progress).tensors()
