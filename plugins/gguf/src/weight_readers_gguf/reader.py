# SPDX-License-Identifier: Apache-2.0
"""Reader ``gguf``: packed views of memory-mapped files, in file order, and numbers where those are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from weight_readers import (
    CheckpointMeta,
    CheckpointProblems,
    Feature,
    ReaderInfo,
    Selection,
    TensorMeta,
    TensorPart,
)
from weight_readers.reader import Files, KeyFilter, Progress
from weight_readers.slices import bounds_in_units, c_strides
from weight_readers_files import HeaderCache, Wanted, check_slices, chosen_by_file, file_plans, nbytes_of
from weight_readers_files.devices import placement
from weight_readers_files.options import MappingOptions
from weight_readers_files.passes import Pass
from weight_readers_gguf.cuts import Cut, cut
from weight_readers_gguf.dequant import dequantize as dequantized
from weight_readers_gguf.meta import GGUFMeta, read_meta
from weight_readers_gguf.plugin import INFO
from weight_readers_gguf.tensors import GGUFTensor
from weight_readers_gguf.types import TYPES

DTYPES = {name: name for name in ("float32", "bfloat16", "float16")} | {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""What ``dequantize`` may be, and the torch dtype that it means."""

_WHOLE_BLOCKS = "Slice so, or read numbers: dequantize='bfloat16'"


class GGUFReader:
    """Yields weights of GGUF files packed as they are stored, ``uint8 [rows, row_bytes]``; lifetime `MAPPED`.

    Numbers come in their own dtype (BF16 reinterpreted, never cast). Quantized tensors that no layer computes with
    as blocks (not 2-D, not named ``.weight``) are dequantized to float32; `TensorMeta.converted` says why.

    dequantize: ``float32``, ``bfloat16`` or ``float16``: yield numbers of this dtype for every quantized tensor,
        computed in float32 and rounded once.
    readonly, copy, prefetch: as those of reader ``safetensors``.
    """

    info: ReaderInfo
    selection: Selection | None

    def __init__(
        self, *, dequantize: str | None = None, readonly: bool = False, copy: bool = False, prefetch: int = 0
    ) -> None:
        if dequantize is not None:
            if dequantize not in DTYPES:
                given = f"must be one of {list(DTYPES)}, not {dequantize!r}"
                raise ValueError(f"option 'dequantize' of reader 'gguf' {given}")
            dequantize = DTYPES[dequantize]
        self._options = MappingOptions(reader=INFO.name, readonly=readonly, copy=copy, prefetch=prefetch)
        info = INFO if dequantize is None else replace(INFO, features=INFO.features - {Feature.PACKED})
        self.info = self._options.declared(info)
        self.selection = None
        self._headers: HeaderCache[GGUFMeta] = HeaderCache(lambda paths: read_meta(paths, dequantize))

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Check every header and the set. Raises `CheckpointProblems` listing all that is wrong, over all files.

        A tensor of a type that cannot be read is listed with dtype ``unknown``: only reading it is an error.
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
        """Yield ``(name, tensor)`` by checkpoint name, file by file in natural order, by offset within each.

        A slice counts logical elements. Of packed tensors it takes rows, and columns that begin and end at a block;
        other parts are a SliceError. Raises CheckpointError before the first tensor for whatever the headers show,
        and for wanted tensors of a type that cannot be read; FileChangedError when a file changes meanwhile.
        """
        where = placement(device)
        known = self._headers.read(files)
        meta, slices = known.meta, slices or {}
        check_slices(meta, slices, several=True)
        chosen = chosen_by_file(meta, key_filter)
        _readable((tensor for tensors in chosen.values() for tensor in tensors), meta)
        cuts = {t.name: _cut(t, meta, slices.get(t.name)) for tensors in chosen.values() for t in tensors}
        plans = file_plans(meta, known.states, chosen, lambda tensor: _wanted(tensor, cuts[tensor.name]))
        finish = {
            name: partial(_numbers, meta=meta[name], tensor=meta.gguf[name], found=found)
            for name, found in cuts.items()
            if meta[name].converted is not None
        }
        return Pass(plans, self._options, device=where, on_progress=on_progress, finish=finish, read=finish).tensors()


def _readable(tensors: Iterable[TensorMeta], meta: GGUFMeta) -> None:
    """Raise for every wanted tensor that cannot be read, all at once."""
    problems = [refusal for tensor in tensors if (refusal := meta.gguf[tensor.name].refusal()) is not None]
    if problems:
        CheckpointProblems.raise_any(problems, path=problems[0].path)


def _cut(tensor: TensorMeta, meta: GGUFMeta, part: TensorPart | None) -> Cut:
    block = 1 if tensor.ggml_type is None else TYPES[tensor.ggml_type].block
    return cut(meta.gguf[tensor.name], bounds_in_units(tensor, part or (), block, "block", fix=_WHOLE_BLOCKS))


def _wanted(meta: TensorMeta, found: Cut) -> Wanted:
    """Blocks as bytes, a stretch to a row; numbers in their dtype and shape."""
    if meta.ggml_type is None and meta.converted is None:
        return Wanted.part(meta, getattr(torch, meta.dtype), found.shape, found.ranges, c_strides(meta.shape))
    if meta.ggml_type is not None:
        kind = TYPES[meta.ggml_type]
        shape = (found.shape[0], found.shape[1] // kind.block * kind.nbytes)
        return Wanted.part(meta, torch.uint8, shape, found.ranges, c_strides(meta.stored_shape))
    rows = max(found.rows, 1)
    shape = (rows, nbytes_of(found.ranges) // rows)
    return Wanted.part(meta, torch.uint8, shape, found.ranges, c_strides(shape))


def _numbers(packed: torch.Tensor, *, meta: TensorMeta, tensor: GGUFTensor, found: Cut) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, meta.dtype)
    if packed.numel() == 0:
        return torch.empty(found.shape, dtype=dtype, device=packed.device)
    numbers = dequantized(packed, tensor.type, dtype=dtype)
    if found.is_within:
        return numbers.reshape(tensor.shape)[tuple(slice(*each) for each in found.bounds)].contiguous()
    return numbers.reshape(found.rows, found.width).narrow(1, found.skip, found.take).reshape(found.shape)
