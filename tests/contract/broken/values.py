# SPDX-License-Identifier: Apache-2.0
"""Readers that yield wrong values, names or listings."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from contract.broken.bases import Changed, Pairs, Sound
from contract.broken.registry import MIB, breaks

from weight_readers import CheckpointError, CheckpointMeta, SliceError
from weight_readers_gguf.reader import GGUFReader
from weight_readers_mmap.reader import MappedReader

breaks("the_declared_dtypes_are_those_of_its_files")(Sound)
breaks("the_order_of_the_header_is_told_from_that_of_the_bytes")(Sound)


@breaks("every_dtype_comes_out_bit_for_bit")
class _Widens(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name, values.float() if values.dtype is torch.bfloat16 else values


@breaks("scalars_keep_their_shape")
class _NoScalars(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name, values.reshape(1) if values.ndim == 0 else values


@breaks("tensors_without_elements_stand_anywhere")
class _NoEmpty(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        for name, values in sound:
            if values.numel() or "slices" in arguments:
                yield name, values


@breaks("a_file_without_tensors_yields_nothing")
class _NeedsTensors(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if not self.count(files):
            raise CheckpointError("no tensors", path=str(files[0]))
        yield from sound


@breaks("names_are_any_text_that_the_format_holds")
class _TidiesNames(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name.replace("\t", " "), values


@breaks("thousands_of_tensors_come_whole")
class _Forgets(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from islice(sound, 400)


@breaks("a_large_tensor_has_every_byte")
class _FirstChunkOnly(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        if values.nbytes > 8 * MIB:
            values[8 * MIB // values.itemsize :].zero_()
        yield name, values


@breaks("blocks_come_packed_as_they_are_stored", "packed")
class _TurnsBlocks(GGUFReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        for name, values in super().iter_weights(files, **arguments):
            yield name, values.flip(0) if name.endswith(".weight") and values.dtype is torch.uint8 else values


@breaks("a_slice_that_cuts_a_block_is_refused_with_the_tensor", "packed")
class _RoundsToBlocks(GGUFReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        try:
            return super().iter_weights(files, **arguments)
        except SliceError as error:
            if "inside a block" not in str(error):
                raise
            return super().iter_weights(files, **{**arguments, "slices": None})


@breaks("the_order_is_the_declared_one")
class _Sorts(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from sorted(sound) if self.count(files) == 5 and len(files) == 1 else sound


@breaks("shards_come_in_natural_order_whatever_order_they_are_given_in")
class _OrdersAsText(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from sorted(sound, key=lambda pair: pair[0]) if len(files) > 9 else sound


@breaks("the_meta_says_what_is_yielded")
class _MiscountsBytes(MappedReader):
    def read_meta(self, files: Any) -> CheckpointMeta:
        meta = super().read_meta(files)
        return CheckpointMeta({name: replace(each, nbytes=each.nbytes + 1) for name, each in meta.items()}, meta.files)


@breaks("what_is_no_tensors_bytes_is_counted_as_header")
class _CountsTheFileAsHeader(MappedReader):
    def read_meta(self, files: Any) -> CheckpointMeta:
        meta = super().read_meta(files)
        return CheckpointMeta(dict(meta), [replace(file, header_bytes=file.nbytes) for file in meta.files])


class _Listing(dict[str, Any]):
    files: Any = ()


@breaks("the_meta_is_cores_own_kind_of_mapping")
class _ListsInADict(MappedReader):
    def read_meta(self, files: Any) -> Any:
        meta = super().read_meta(files)
        listing = _Listing(meta)
        listing.files = meta.files
        return listing


@breaks("listing_the_tensors_reads_none_of_them")
class _ReadsToList(MappedReader):
    def read_meta(self, files: Any) -> CheckpointMeta:
        meta = super().read_meta(files)
        for file in files:
            Path(file).read_bytes()
        return meta
