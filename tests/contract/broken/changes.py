# SPDX-License-Identifier: Apache-2.0
"""Readers that do not notice what is done to a file, or do not say how far they had come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from contract.broken.bases import Changed, Pairs, mapped
from contract.broken.registry import breaks

from weight_readers import CheckpointError, ReadStats
from weight_readers_files.plans import bytes_wanted
from weight_readers_files.source import Source
from weight_readers_files.targets import checked_plans
from weight_readers_mmap.reader import MappedReader
from weight_readers_safetensors import plan
from weight_readers_threaded.reader import ThreadedReader


@breaks("a_file_that_was_mended_or_replaced_is_read_anew")
class _NeverForgets(MappedReader):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        known: dict[tuple[str, ...], Any] = {}
        read = self._headers.read
        self._headers.read = lambda files: known.setdefault(tuple(map(str, files)), read(files))  # type: ignore[method-assign]


@breaks("what_is_written_to_a_file_meanwhile_is_an_error_or_has_no_part_in_the_tensors")
class _NeverLooks(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if len(files) != 3 or self.count(files) != 6 or arguments:
            yield from sound
            return
        for name, meta in self.read_meta(files).items():
            yield name, mapped(meta, shared=False)


class OneByOne(ThreadedReader):
    """Fills one target after the other, and tells of each."""

    def read_into(
        self, files: Any, targets: Any, *, slices: Any = None, on_progress: Any = lambda stats: None
    ) -> ReadStats:
        known = self._headers.read(files)
        plans, _ = checked_plans(
            targets, known.meta, lambda: plan(known.meta, known.states, targets.__contains__, slices or {})
        )
        stats, written = ReadStats(bytes_wanted=bytes_wanted(plans)), []
        with self.naming(written):
            for file in plans:
                for wanted in file.wanted:
                    data = self.read(file, wanted)
                    written.append(wanted.name)
                    if data:
                        targets[wanted.name].copy_(torch.frombuffer(data, dtype=wanted.dtype).view(wanted.shape))
                    read = stats.bytes_read + wanted.nbytes
                    stats = replace(stats, tensors=stats.tensors + 1, bytes_read=read)
                    on_progress(stats)
        return stats

    @contextmanager
    def naming(self, written: list[str]) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            error.written = tuple(written)
            raise

    def read(self, file: Any, wanted: Any) -> bytearray:
        data, done = bytearray(wanted.nbytes), 0
        with Source(file.path, file.state) as source:
            for begin, nbytes in wanted.ranges:
                source.read_into(memoryview(data)[done : done + nbytes], begin, tensor=wanted.name)
                done += nbytes
        return data


@breaks("what_is_done_to_a_file_meanwhile_is_an_error_or_has_no_part_in_targets", "into")
class _OpensWhateverIsThere(OneByOne):
    def read(self, file: Any, wanted: Any) -> bytearray:
        data = Path(file.path).read_bytes().ljust(wanted.end, b"\0")
        return bytearray(b"".join(data[begin : begin + nbytes] for begin, nbytes in wanted.ranges))


@breaks("an_error_in_the_midst_names_the_targets_that_were_written_to", "into")
class _NamesNone(OneByOne):
    @contextmanager
    def naming(self, written: list[str]) -> Iterator[None]:
        yield
