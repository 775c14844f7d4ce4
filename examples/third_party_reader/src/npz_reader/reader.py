# SPDX-License-Identifier: Apache-2.0
"""Reader `npz`: members of the archive, read in file order into memory of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from npz_reader.header import read_headers
from npz_reader.plugin import INFO
from weight_readers import CheckpointMeta, ReaderInfo, Selection, TensorMeta, TensorPart
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers_files import HeaderCache, Wanted, chosen_by_file, file_plans
from weight_readers_files.options import MappingOptions
from weight_readers_files.passes import Pass


class NpzReader:
    """Reads each wanted member by its exact range; lifetime `OWNED`."""

    info: ReaderInfo
    selection: Selection | None

    def __init__(self) -> None:
        self.info = INFO
        self.selection = None  # core sets it
        self._headers: HeaderCache[CheckpointMeta] = HeaderCache(read_headers)

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
        """Yield `(name, tensor)` file by file in natural order, by offset within each."""
        if slices:
            # Slices are not declared: what cannot be honoured is refused, never ignored.
            raise ValueError(f"reader {INFO.name!r} reads whole tensors, and was asked for slices of {sorted(slices)}")
        known = self._headers.read(files)
        plans = file_plans(known.meta, known.states, chosen_by_file(known.meta, key_filter), _whole)
        options = MappingOptions(reader=INFO.name, copy=True)
        return Pass(plans, options, device=device, on_progress=on_progress).tensors()


def _whole(tensor: TensorMeta) -> Wanted:
    """Where all bytes of a tensor lie."""
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    begin, nbytes = tensor.offset, tensor.nbytes
    return Wanted(tensor.name, dtype, tensor.stored_shape, None, ((begin, nbytes),), begin, begin + nbytes, nbytes)
