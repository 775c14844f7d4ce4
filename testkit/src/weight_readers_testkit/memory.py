# SPDX-License-Identifier: Apache-2.0
"""Whose memory a tensor is and how long, where it lies, and what a reader leaves behind."""

from __future__ import annotations

import gc
import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from weight_readers import Alignment, ConfigError, Feature, ReadStats, Writes
from weight_readers_testkit import elsewhere as there
from weight_readers_testkit.counters import bytes_touched, cached_bytes, mapped_bytes
from weight_readers_testkit.filling import peak_while_filling
from weight_readers_testkit.subject import EVERYDAY, Subject
from weight_readers_testkit.tensors import Stored, bits, contents, expected, noise, same, stored

_NARROW = ("uint8", "int8", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of one byte that hold any byte: what comes after an odd number of them lies unaligned."""


class MemoryTests(Subject):
    def test_every_tensor_stays_as_it_was_when_all_are_kept(self, tmp_path: Path) -> None:
        """`iter_weights`: with `clone_tensors=True` each tensor has memory that is not used again; else declare
        `Lifetime.UNTIL_NEXT` and copy."""
        shards = self.shards(tmp_path, 3, tensors=40)
        kept = list(self.make().iter_weights(shards))
        right = {name: each for number in (1, 2, 3) for name, each in self.shard(number, 40).items()}
        same(expected(right), contents(kept))

    def test_tensors_outlive_generator_reader_and_file_name(self, tmp_path: Path) -> None:
        """`iter_weights`: a tensor keeps what it needs alive by itself; closing the generator takes nothing back."""
        shards = self.shards(tmp_path, 2)
        weights = self.make().iter_weights(shards)
        kept = [next(weights)]
        _close(weights)
        del weights
        for number in (1, 2):
            self.path(tmp_path, f"model-{number}").unlink()
        gc.collect()
        assert [expected(self.shard(1))["s1.t0"]] == list(contents(kept).values())

    def test_tensors_are_aligned_as_declared(self, tmp_path: Path) -> None:
        """`iter_weights`: copy what lies unaligned in the file (`Pass` does), or declare `Alignment.FILE`."""
        reader = self.make()
        narrow = next((dtype for dtype in _NARROW if dtype in self.held()), None)
        if reader.info.alignment is not Alignment.NATURAL or narrow is None:
            pytest.skip("alignment is not promised, or the files hold no dtype of one byte")
        tensors = {f"{n}.{name}": each for n in (1, 3) for name, each in _odd(n, narrow).items()}
        kept = dict(reader.iter_weights([self.file(tmp_path, tensors)]))
        assert [name for name, values in kept.items() if values.data_ptr() % values.dtype.itemsize] == []
        same(expected(tensors), contents(kept.items()))

    def test_a_write_reaches_neither_the_file_nor_another_tensor(self, tmp_path: Path) -> None:
        """`iter_weights`: map files privately and share no memory between tensors, or declare `Writes.READ_ONLY`."""
        reader = self.make()
        if reader.info.writes is Writes.READ_ONLY:
            pytest.skip("its tensors are read-only")
        shards = self.shards(tmp_path, 2)
        paths = [self.path(tmp_path, f"model-{number}") for number in (1, 2)]
        before = [_digest(path) for path in paths]
        kept = dict(reader.iter_weights(shards))
        right = {name: bits(values) for name, values in kept.items()}
        kept["s1.t1"].view(torch.int32).fill_(7)
        right["s1.t1"] = bits(torch.full((3, 5), 7, dtype=torch.int32))
        same(right, {name: bits(values) for name, values in kept.items()})
        assert before == [_digest(path) for path in paths]

    def test_what_a_write_does_is_declared(self, tmp_path: Path, elsewhere: there.Elsewhere) -> None:
        """`ReaderInfo.writes`: `READ_ONLY` where pages are mapped without write permission, and only there."""
        shards = self.shards(tmp_path, 1)
        read_only = self.make().info.writes is Writes.READ_ONLY
        assert (-signal.SIGSEGV if read_only else 0) == elsewhere.run(there.write_in_child, self.case(shards))

    def test_views_of_the_file_are_yielded_where_declared_and_nowhere_else(self, tmp_path: Path) -> None:
        """`Feature.FILE_MAPPING`, in `info` of this mode: declare it where tensors are views of the file, and leave it
        out where they are copied."""
        self.need_files("files to map")
        reader = self.make()
        path, _ = self.bulky(tmp_path)
        kept = list(reader.iter_weights([path]))
        mapped = mapped_bytes(path)
        assert (Feature.FILE_MAPPING in reader.info.features) == (mapped >= self.bulk // 2), f"{mapped} bytes mapped"
        assert len(kept) == 13

    def test_memory_is_bounded(self, tmp_path: Path, elsewhere: there.Elsewhere) -> None:
        """`iter_weights`: read ahead of the consumer no more than a fixed number of bytes; `memory_bound` says how
        many, `bounded_options` what sets it. Or leave out `Feature.BOUNDED_MEMORY`."""
        self.need(Feature.BOUNDED_MEMORY)
        peak = elsewhere.run(there.peak_of_own_memory, self._bounded(tmp_path))
        assert peak <= self.memory_bound, f"{peak} bytes were held, of {self.bulk} read and not kept"

    def test_memory_is_bounded_while_targets_are_filled(self, tmp_path: Path, elsewhere: there.Elsewhere) -> None:
        """`read_into`: read straight into targets, or through a staging buffer of fixed size (`targets.blocks`);
        `memory_bound` says how large. Or leave out `Feature.BOUNDED_MEMORY`."""
        self.need(Feature.READ_INTO)
        self.need(Feature.BOUNDED_MEMORY)
        peak = elsewhere.run(peak_while_filling, self._bounded(tmp_path))
        assert peak <= self.memory_bound, f"{peak} bytes were held besides the targets, of {self.bulk} read into them"

    def test_direct_reads_leave_the_page_cache_alone(self, tmp_path: Path) -> None:
        """`iter_weights`: open files with O_DIRECT; or leave out `Feature.DIRECT_IO`."""
        self.need_files("page cache")
        reader = self.need(Feature.DIRECT_IO)
        path, _ = self.bulky(tmp_path)
        reader.read_meta([path])
        bytes_touched(path, lambda: contents(reader.iter_weights([path])))
        assert cached_bytes(path) < self.bulk // 4

    def test_tensors_arrive_on_each_device(self, tmp_path: Path) -> None:
        """`iter_weights`: honour `device`; those of `ReaderInfo.devices` are reached directly, others by a copy."""
        reader = self.make()
        shards = self.shards(tmp_path, 1)
        devices = {"cpu"} | (reader.info.devices & set(_present()))
        for device in sorted(devices):
            got = {name: (t.device.type, tuple(t.shape)) for name, t in reader.iter_weights(shards, device=device)}
            assert {"s1.t0": (device, (3, 5)), "s1.t1": (device, (3, 5))} == got

    def test_a_device_that_does_not_exist_is_refused(self, tmp_path: Path) -> None:
        """`iter_weights`: an error that names the device, before the first tensor: ConfigError, as `devices.placement`
        raises it, or torch's RuntimeError."""
        with pytest.raises((ConfigError, RuntimeError), match="warp"):
            next(iter(self.make().iter_weights(self.shards(tmp_path, 1), device="warp")))

    def test_the_meta_device_is_refused_as_no_value_could_arrive(self, tmp_path: Path) -> None:
        """`iter_weights`: a ValueError for `device="meta"` (`devices.placement`)."""
        with pytest.raises(ValueError, match="meta"):
            next(iter(self.make().iter_weights(self.shards(tmp_path, 1), device="meta")))

    def test_a_drained_reader_leaves_nothing_open_although_tensors_are_kept(self, tmp_path: Path) -> None:
        """`iter_weights`: close descriptors and join threads when the last tensor is yielded; a mapping needs no
        descriptor."""
        shards, kept = self.shards(tmp_path, 4), []
        reader = self.make()
        reader.read_meta(shards)
        with self.nothing_left_open():
            kept += list(reader.iter_weights(shards))
        assert len(kept) == 8

    @pytest.mark.parametrize("how", ["closed", "dropped", "failed"])
    def test_a_reader_that_is_stopped_leaves_nothing_open(self, tmp_path: Path, how: str) -> None:
        """`iter_weights`: close descriptors and join threads in `finally` or `with`, for a generator that is closed,
        dropped, or left by an error."""
        shards = self.shards(tmp_path, 4)
        for taken in (1, 3):
            reader = self.make()
            with self.nothing_left_open():
                assert taken == _stop(reader.iter_weights, shards, how, taken)

    def _bounded(self, folder: Path) -> there.Case:
        path, _ = self.bulky(folder)
        return self.case([path])._replace(
            options=self.options if self.bounded_options is None else self.bounded_options
        )


def _odd(count: int, dtype: str) -> dict[str, Stored]:
    """A tensor after an odd number of bytes."""
    return {"odd": Stored(dtype, (count,), noise(count)), "x": stored(EVERYDAY, 4, seed=count)}


def _present() -> list[str]:
    """Devices of this machine other than the CPU."""
    return ["cuda"] if torch.cuda.is_available() else []


def _stop(iter_weights: Any, shards: list[str], how: str, taken: int) -> int:
    """Take some tensors and stop in one of three ways; returns how many were taken."""
    if how == "failed":
        count = 0

        def on_progress(stats: ReadStats) -> None:
            nonlocal count
            count = stats.tensors
            if count == taken:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            list(iter_weights(shards, on_progress=on_progress))
        return count
    weights = iter(iter_weights(shards))
    kept = [next(weights) for _ in range(taken)]
    if how == "closed":
        _close(weights)
    return len(kept)


def _close(weights: Iterator[Any]) -> None:
    weights.close()  # type: ignore[attr-defined]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
