# SPDX-License-Identifier: Apache-2.0
"""Reader ``pt``: views of memory-mapped files that torch.save wrote, in file order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from weight_readers import CheckpointMeta, ReaderInfo, Selection, TensorPart
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_files import HeaderCache
from weight_readers_files.devices import placement
from weight_readers_files.options import MappingOptions
from weight_readers_files.passes import Pass
from weight_readers_pt.meta import PtMeta, read_meta
from weight_readers_pt.plan import plan
from weight_readers_pt.plugin import INFO


class PtReader:
    """Yields views of memory-mapped ``.bin``, ``.pt``, ``.pth`` and ``.ckpt`` files; lifetime `MAPPED`.

    The pickle in a file is taken apart by an unpickler that imports and calls nothing; the bytes of the tensors are
    mapped as those of safetensors files are. Tensors that share a storage in the file share memory when they are
    views, and each has its own with ``copy``. Those that lie unaligned, as most do in the format of torch before
    1.6, are copied.

    readonly, copy, prefetch: as those of reader ``safetensors``.
    """

    info: ReaderInfo
    selection: Selection | None

    def __init__(self, *, readonly: bool = False, copy: bool = False, prefetch: int = 0) -> None:
        self._options = MappingOptions(reader=INFO.name, readonly=readonly, copy=copy, prefetch=prefetch)
        self.info = self._options.declared(INFO)
        self.selection = None
        self._headers: HeaderCache[PtMeta] = HeaderCache(read_meta, shared_as="pt")

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Check every file. Raises `CheckpointProblems` listing all that is wrong, over all files.

        UnsafePickleError names what a file asks Python to import; nothing is imported, and no code of it runs.
        ``nbytes`` of a tensor is the stretch of the file that holds it: of one that is not contiguous, from its first
        byte to its last.
        """
        meta = self._headers.read(files).meta
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
        """Yield ``(name, tensor)`` file by file in natural order, by offset within each.

        A tensor has the strides with which it was saved. Raises CheckpointError before the first tensor for whatever
        is wrong with the files, FileChangedError when a file changes meanwhile.
        """
        where = placement(device)
        known = self._headers.read(files)
        found = plan(known.meta, known.states, key_filter, slices or {})
        return Pass(found.files, self._options, device=where, on_progress=on_progress, finish=found.strided).tensors()
