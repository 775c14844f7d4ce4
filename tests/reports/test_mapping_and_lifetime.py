# SPDX-License-Identifier: Apache-2.0
"""Public reports about mapped files, the life of their tensors and the memory they take, through the mapped reader."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import entry, floats, write_safetensors, write_tensors
from support.measure import (
    descriptors,
    mapped_bytes,
    mappings,
    memory,
    nothing_left_open,
    output_of,
    run_child,
    smaps,
)
from support.tensors import digest, noise, tensor, write_shards, write_sparse

from weight_readers import FileChangedError, TruncatedFileError, UnreadableFileError
from weight_readers_files.segments import SEGMENT_BYTES
from weight_readers_files.source import fill
from weight_readers_mmap.reader import MappedReader

MIB = 1 << 20
MODES: list[dict[str, Any]] = [{}, {"readonly": True}, {"copy": True}, {"prefetch": 2}]
every_mode = pytest.mark.parametrize("options", MODES, ids=str)


class TestB013OneReadReturnsLessThanWasAsked:
    @pytest.mark.parametrize("at_once", [1, 2, 5])
    def test_a_file_that_returns_a_few_bytes_at_a_time_is_read_to_the_end(self, at_once: int) -> None:
        data = noise(1000)
        counts = [1, 5, 2, 4, 3]

        def read_at(buffer: memoryview, offset: int) -> int:
            counts.append(counts.pop(0))
            part = data[offset : offset + min(len(buffer), counts[-1], at_once)]
            buffer[: len(part)] = part
            return len(part)

        target = bytearray(1000)
        assert fill(read_at, memoryview(target), 0) == 1000
        assert data == target

    def test_no_request_exceeds_the_limit(self) -> None:
        sizes = []

        def read_at(buffer: memoryview, offset: int) -> int:
            sizes.append(len(buffer))
            return len(buffer)

        assert fill(read_at, memoryview(bytearray(20)), 0, at_once=7) == 20
        assert sizes == [7, 7, 6]

    def test_nothing_before_the_end_is_an_early_end(self) -> None:
        answers = [3, 0, 9]
        assert fill(lambda buffer, offset: answers.pop(0), memoryview(bytearray(20)), 0) == 3


class TestB011AndB004AFileThatIsOneByteShort:
    @every_mode
    @pytest.mark.parametrize("cut", [1, 3, 4, 8])
    def test_is_truncated_and_not_a_matter_of_element_sizes(
        self, tmp_path: Path, options: dict[str, Any], cut: int
    ) -> None:
        path = write_tensors(tmp_path / "m.safetensors", {"x": ("F32", [4], floats(1, 2, 3, 4))})
        size = path.stat().st_size
        os.truncate(path, size - cut)
        with pytest.raises(TruncatedFileError) as caught:
            MappedReader(**options).iter_weights([path])
        assert (str(path), f"{size} bytes", f"{size - cut} bytes") == (
            caught.value.path,
            caught.value.expected,
            caught.value.found,
        )


class TestB026AFileWithoutMetadata:
    @every_mode
    @pytest.mark.parametrize("metadata", [{}, {"author": "x"}])
    def test_is_read(self, tmp_path: Path, options: dict[str, Any], metadata: dict[str, str]) -> None:
        path = write_tensors(tmp_path / "m.safetensors", {"x": ("F32", [1], floats(7))}, **metadata)
        reader = MappedReader(**options)
        assert [(name, values.tolist()) for name, values in reader.iter_weights([path])] == [("x", [7.0])]
        assert metadata == dict(reader.read_meta([path]).files[0].metadata)


class TestB032OffsetsThatAreNotAligned:
    @every_mode
    def test_values_are_right_and_addresses_aligned(self, tmp_path: Path, options: dict[str, Any]) -> None:
        tensors = {"odd": tensor("U8", 3), "x": ("F32", [4], floats(1, 2, 3, 4)), "y": tensor("BF16", 3)}
        path = write_tensors(tmp_path / "m.safetensors", tensors)
        kept = dict(MappedReader(**options).iter_weights([path]))
        assert kept["x"].tolist() == [1, 2, 3, 4]
        assert [kept[name].data_ptr() % kept[name].dtype.itemsize for name in ("x", "y")] == [0, 0]

    def test_an_unaligned_tensor_costs_its_own_size_and_no_mapping_of_it(self, tmp_path: Path) -> None:
        path = write_tensors(tmp_path / "m.safetensors", {"odd": tensor("U8", 3), "x": tensor("F32", 4)})
        kept = [values for name, values in MappedReader().iter_weights([path]) if name == "x"]
        assert (kept[0].untyped_storage().nbytes(), mappings(path)) == (16, [])


class TestB039TensorsWithoutElements:
    @every_mode
    def test_alone_in_a_file_without_data(self, tmp_path: Path, options: dict[str, Any]) -> None:
        path = write_tensors(tmp_path / "m.safetensors", {"a": ("F32", [0], b""), "b": ("I64", [2, 0, 3], b"")})
        got = {
            name: (values.dtype, tuple(values.shape)) for name, values in MappedReader(**options).iter_weights([path])
        }
        assert {"a": (torch.float32, (0,)), "b": (torch.int64, (2, 0, 3))} == got

    @every_mode
    def test_last_and_between(self, tmp_path: Path, options: dict[str, Any]) -> None:
        header = {
            "a": entry("F32", [1], 0, 4),
            "b": entry("F32", [1], 4, 8),
            "between": entry("F64", [0], 4, 4),
            "last": entry("F64", [0], 8, 8),
        }
        path = write_safetensors(tmp_path / "m.safetensors", header, floats(1, 2))
        got = {name: values.tolist() for name, values in MappedReader(**options).iter_weights([path])}
        assert got == {"a": [1], "between": [], "b": [2], "last": []}


def _long_ago(path: Path) -> Path:
    """So that a write shows in the time of the file even where the clock ticks slowly."""
    os.utime(path, (10**9, 10**9))
    return path


def _rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\xff\xff\xff\xff")


CHANGES: dict[str, Callable[[Path], None]] = {
    "rewritten": _rewrite,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 4),
    "cut to nothing": lambda path: os.truncate(path, 0),
    "grown": lambda path: os.truncate(path, path.stat().st_size + 4),
}

SHRINKS = """
import os, sys
from weight_readers_mmap.reader import MappedReader
path = sys.argv[1]
weights = dict(MappedReader().iter_weights([path]))
os.truncate(path, 0)
print("alive", flush=True)
weights["x"].sum()
print("still alive", flush=True)
"""


class TestB088TheFileIsChangedUnderALiveMapping:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        tensors = {name: ("F32", [4], floats(*[value] * 4)) for value, name in enumerate("abc")}
        return _long_ago(write_tensors(tmp_path / "m.safetensors", tensors))

    @every_mode
    def test_replaced_by_rename_the_old_weights_are_read_to_the_end(self, path: Path, options: dict[str, Any]) -> None:
        new = write_tensors(path.with_name("new"), {name: ("F32", [4], floats(9, 9, 9, 9)) for name in "abc"})
        weights = MappedReader(**options).iter_weights([path])
        kept = [next(weights)]
        new.replace(path)
        kept += list(weights)
        assert {name: t.tolist() for name, t in kept} == {"a": [0.0] * 4, "b": [1.0] * 4, "c": [2.0] * 4}

    @every_mode
    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    @pytest.mark.parametrize("taken", [1, 3])
    def test_changed_in_place_the_file_is_named(
        self, path: Path, options: dict[str, Any], change: Callable[[Path], None], taken: int
    ) -> None:
        with nothing_left_open():
            weights = MappedReader(**options).iter_weights([path])
            for _ in range(taken):
                next(weights)
            change(path)
            with pytest.raises(FileChangedError) as caught:
                next(weights)
        assert (str(path), "b" if taken == 1 else None) == (caught.value.path, caught.value.tensor)
        assert "replace files by rename, never in place" in str(caught.value)

    @every_mode
    def test_a_later_shard_that_is_replaced_is_not_read_by_the_old_header(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        shards = write_shards(tmp_path, 3)
        with nothing_left_open():
            weights = MappedReader(**options).iter_weights(shards)
            next(weights)
            write_tensors(tmp_path / "new", {"other": tensor("U8", 3)}).replace(shards[2])
            with pytest.raises(FileChangedError) as caught:
                list(weights)
        assert str(shards[2]) == caught.value.path

    def test_cut_after_the_last_check_a_touch_is_sigbus_as_documented(self, tmp_path: Path) -> None:
        path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("U8", 100_000)})
        done = run_child(SHRINKS, path)
        assert (done.returncode, done.stdout.strip()) == (-signal.SIGBUS, "alive"), done.stderr
        documented = (Path(__file__).parents[2] / "docs/decisions/0004-mapped-reader.md").read_text()
        assert "SIGBUS" in documented

    def test_a_copy_does_not_depend_on_the_file(self, path: Path) -> None:
        kept = dict(MappedReader(copy=True).iter_weights([path]))
        os.truncate(path, 0)
        assert {name: t.tolist() for name, t in kept.items()} == {"a": [0.0] * 4, "b": [1.0] * 4, "c": [2.0] * 4}


class TestB090IterationInAnotherOrderThanTheOffsets:
    @every_mode
    def test_offsets_rise(self, tmp_path: Path, options: dict[str, Any]) -> None:
        header = {"a": entry("F32", [1], 8, 12), "b": entry("F32", [1], 0, 4), "c": entry("F32", [1], 4, 8)}
        path = write_safetensors(tmp_path / "m.safetensors", header, floats(1, 2, 3))
        reader = MappedReader(**options)
        meta = reader.read_meta([path])
        order = [(meta[name].offset, name, values.item()) for name, values in reader.iter_weights([path])]
        assert sorted(order) == order
        assert [(name, value) for _, name, value in order] == [("b", 1.0), ("c", 2.0), ("a", 3.0)]
        assert list(meta) == ["a", "b", "c"], "the order of the header is kept for display"


class TestB092TwiceTheModelWhileItIsCopied:
    """Measured: a consumer that copies 256 MiB tensor by tensor has at most one segment of the file resident."""

    def test_pages_of_the_file_go_when_their_tensors_do(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        write_sparse(path, {f"t{number:02}": 8 * MIB for number in range(32)})
        file_before, copies, peak = memory("RssFile"), [], 0
        for _, values in MappedReader().iter_weights([path]):
            copies.append(values.clone())
            peak = max(peak, smaps(path, "Rss"))
        del values
        assert 8 * MIB <= peak <= SEGMENT_BYTES
        assert mappings(path) == []
        assert memory("RssFile") - file_before < 32 * MIB
        assert len(copies) == 32


class TestB093WorkInPlaceTurnsTheMappingAnonymous:
    def test_the_default_says_copy_on_write_and_does_it(self, tmp_path: Path) -> None:
        path = write_tensors(tmp_path / "m.safetensors", {"x": ("F32", [MIB], noise(MIB) * 4)})
        before = digest(path)
        reader = MappedReader()
        ((_, values),) = reader.iter_weights([path])
        values.sum()
        clean = smaps(path, "Anonymous")
        values *= 3
        assert (reader.info.writes.value, clean) == ("copy_on_write", 0)
        assert smaps(path, "Private_Dirty") >= smaps(path, "Anonymous") >= 4 * MIB
        assert before == digest(path)

    def test_a_read_only_mapping_stays_reclaimable(self, tmp_path: Path) -> None:
        path = write_tensors(tmp_path / "m.safetensors", {"x": ("F32", [MIB], noise(MIB) * 4)})
        reader = MappedReader(readonly=True)
        ((_, values),) = reader.iter_weights([path])
        values.clone().mul_(3)
        assert (reader.info.writes.value, [rights for _, rights in mappings(path)]) == ("read_only", ["r--p"])
        assert smaps(path, "Anonymous") == 0


class TestB094OneSmallViewKeepsTheWholeFile:
    def test_one_of_a_hundred_keeps_one_segment_and_no_descriptor(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        write_sparse(path, {f"t{number:03}": 10 * MIB for number in range(100)})
        before = len(descriptors())
        kept = [values for name, values in MappedReader().iter_weights([path]) if name == "t050"]
        assert mapped_bytes(path) <= SEGMENT_BYTES
        assert before == len(descriptors())
        path.unlink()
        assert (kept[0].numel(), int(kept[0].sum())) == (10 * MIB, 0)

    def test_a_small_one_beside_a_large_one_does_not_keep_it(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        write_sparse(path, {"embedding": 300 * MIB, "bias": 4096, "head": 300 * MIB})
        kept = [values for name, values in MappedReader().iter_weights([path]) if name == "bias"]
        assert mapped_bytes(path) == 4096
        assert kept[0].numel() == 4096


class TestB097WhatIsHeldAfterTheEnd:
    @pytest.mark.parametrize(("keep", "segments"), [(0, 0), (1, 1), (12, 3)])
    def test_only_what_the_caller_holds_is_mapped(self, tmp_path: Path, keep: int, segments: int) -> None:
        path = tmp_path / "m.safetensors"
        write_sparse(path, {f"t{number:02}": 16 * MIB for number in range(12)})
        reader = MappedReader(prefetch=2)
        weights = reader.iter_weights([path])
        kept = [values for _, values in weights][:keep]
        gc.collect()
        assert segments * SEGMENT_BYTES == mapped_bytes(path)
        kept.clear()
        assert mappings(path) == []

    @every_mode
    def test_a_tensor_goes_when_the_caller_lets_go_of_it(self, tmp_path: Path, options: dict[str, Any]) -> None:
        shards = write_shards(tmp_path, 2)
        weights = MappedReader(**options).iter_weights(shards)
        name, values = next(weights)
        gone = weakref.ref(values)
        del values
        assert (name, gone()) == ("s1.t0", None)


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from support.measure import memory
from weight_readers import TensorSlice, UnreadableFileError
from weight_readers_mmap.reader import MappedReader

path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + (200 << 20),) * 2)

def attempt(**options):
    filtered = {"key_filter": options.pop("only").__eq__, "slices": options.pop("slices", None)}
    try:
        return [int(values.numel()) for _, values in MappedReader(**options).iter_weights([path], **filtered)]
    except (UnreadableFileError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"

part = {"large": TensorSlice(dim=0, start=350 << 20, stop=400 << 20)}
for options in ({}, {"readonly": True}, {"copy": True}):
    print(attempt(only="small", **options))
    print(attempt(only="large", **options))
    print(attempt(only="large", slices=part, **options))
"""


class TestB099AFileLargerThanTheAddressSpace:
    def test_what_fits_is_read_and_what_does_not_says_what_helps(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        write_sparse(path, {"small": 1024, "large": 400 * MIB})
        lines = output_of(LIMITED, path).splitlines()
        assert lines[0::3] == ["[1024]"] * 3
        assert [f"[{50 * MIB}]"] * 3 == lines[2::3], "slices help, as the message says"
        default, readonly, copy = lines[1::3]
        for message in (default, readonly):
            assert message.startswith(
                f"UnreadableFileError: cannot map {400 * MIB} bytes of the file: {path}, tensor 'large'"
            )
            assert "ulimit -v" in message
            assert "read the tensor in slices" in message
        assert ("readonly=True" in default, "readonly=True" in readonly) == (True, False)
        assert copy == f"MemoryError: no {400 * MIB} bytes of memory for tensor 'large' of {path}"

    def test_the_error_is_an_os_error_too(self) -> None:
        assert issubclass(UnreadableFileError, OSError)
