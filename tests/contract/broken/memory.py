# SPDX-License-Identifier: Apache-2.0
"""Readers whose memory is not what they declare, and those that leave something behind."""

from __future__ import annotations

import os
from typing import Any

import torch
from contract.broken.bases import Changed, Pairs, Sound, mapped
from contract.broken.registry import breaks

from weight_readers_mmap.reader import MappedReader

breaks("what_a_write_does_is_declared")(Sound)
breaks("direct_reads_leave_the_page_cache_alone", "owned")(Sound)


@breaks("every_tensor_stays_as_it_was_when_all_are_kept")
class _OneBuffer(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if self.count(files) != 120:
            yield from sound
            return
        buffer = torch.empty(3, 5)
        for name, values in sound:
            yield name, buffer.copy_(values)


@breaks("tensors_outlive_generator_reader_and_file_name")
class _TakesBack(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        given = []
        try:
            for name, values in sound:
                given.append(values)
                yield name, values
        except GeneratorExit:
            for values in given:
                values.zero_()


@breaks("tensors_are_aligned_as_declared")
class _Unaligned(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        if name.endswith(".x"):
            data = bytearray(1) + bytearray(values.view(torch.uint8).numpy().tobytes())
            values = torch.frombuffer(data, dtype=values.dtype, offset=1)
        yield name, values


@breaks("a_write_reaches_neither_the_file_nor_another_tensor")
class _WritesThrough(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if self.count(files) != 4 or len(files) != 2 or set(arguments) - {"on_progress"}:
            yield from sound
            return
        for name, meta in self.read_meta(files).items():
            yield name, mapped(meta, shared=True)


class _Copies(MappedReader):
    def __init__(self) -> None:
        super().__init__(copy=True)


breaks("views_of_the_file_are_yielded_where_declared_and_nowhere_else")(_Copies)


@breaks("memory_is_bounded", "owned")
class _ReadsAllFirst(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from list(sound)


@breaks("tensors_arrive_on_each_device")
class _NeverArrives(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        for name, values in sound:
            yield name, values.to("meta") if "device" in arguments else values


@breaks("a_device_that_does_not_exist_is_refused")
class _AnyDevice(MappedReader):
    def iter_weights(self, files: Any, *, device: str = "cpu", **arguments: Any) -> Pairs:
        return super().iter_weights(files, device=device.replace("warp", "cpu"), **arguments)


@breaks("the_meta_device_is_refused_as_no_value_could_arrive")
class _Pretends(Changed):
    def iter_weights(self, files: Any, *, device: str = "cpu", **arguments: Any) -> Pairs:
        sound = super().iter_weights(files, device=device.replace("meta", "cpu"), **arguments)
        return ((name, values.to(device)) for name, values in sound)


@breaks("a_drained_reader_leaves_nothing_open_although_tensors_are_kept")
class _NeverCloses(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from sound
        if files:
            os.open(files[0], os.O_RDONLY)


@breaks("a_reader_that_is_stopped_leaves_nothing_open")
class _ClosesAtTheEndOnly(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        descriptor = os.open(files[0], os.O_RDONLY) if len(files) == 4 else None
        yield from sound
        if descriptor is not None:
            os.close(descriptor)
