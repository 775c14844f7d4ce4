# SPDX-License-Identifier: Apache-2.0
"""What a pass holds in memory and in address space, by the kernel's own account."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files import write_tensors
from support.measure import descriptors, mapped_bytes, mappings, memory, nothing_left_open, output_of, smaps
from support.tensors import bits, digest, noise, tensor, write_sparse

from weight_readers import TensorSlice
from weight_readers_files.segments import SEGMENT_BYTES
from weight_readers_mmap.reader import MappedReader

MIB = 1 << 20
SLACK = 16 * MIB
"""What the interpreter and the allocator may come by meanwhile."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """256 MiB: 64 tensors of 4 MiB, 16 to a segment."""
    path = tmp_path_factory.mktemp("held") / "m.safetensors"
    write_sparse(path, {f"t{number:02}": 4 * MIB for number in range(64)})
    yield path
    path.unlink()


@pytest.mark.parametrize("options", [{}, {"readonly": True}, {"prefetch": 2}], ids=str)
def test_a_consumer_that_copies_each_tensor_holds_one_segment_of_the_file(path: Path, options: dict[str, bool]) -> None:
    reader = MappedReader(**options)
    reader.read_meta([path])
    gc.collect()
    file_before, own_before = memory("RssFile"), memory("RssAnon")
    file_peak = own_peak = mapped_peak = 0
    for _, values in reader.iter_weights([path]):
        copied = values.clone()
        file_peak = max(file_peak, memory("RssFile") - file_before)
        own_peak = max(own_peak, memory("RssAnon") - own_before)
        mapped_peak = max(mapped_peak, mapped_bytes(path))
        del values, copied
    assert file_peak <= SEGMENT_BYTES + SLACK
    assert own_peak <= SEGMENT_BYTES, "the copies are dropped, and nothing else is made"
    assert mapped_peak <= SEGMENT_BYTES + 64 * 1024
    assert mappings(path) == []
    assert memory("RssFile") - file_before <= SLACK


DROPS = """
import sys
from support.measure import memory
from weight_readers_mmap.reader import MappedReader
reader = MappedReader(copy=True)
reader.read_meta(sys.argv[1:])
before, peak = memory("RssAnon"), 0
for _, values in reader.iter_weights(sys.argv[1:]):
    peak = max(peak, memory("RssAnon") - before)
    del values
print(peak)
"""


def test_a_consumer_that_drops_each_copied_tensor_pays_for_one(tmp_path: Path) -> None:
    """In a process of its own: what earlier tests have left, and give back meanwhile, would hide what is taken."""
    path = tmp_path / "m.safetensors"
    write_sparse(path, {f"t{number}": 64 * MIB for number in range(4)})
    assert 64 * MIB <= int(output_of(DROPS, path)) <= 64 * MIB + SLACK


def test_dropping_the_tensors_of_a_segment_unmaps_it(path: Path) -> None:
    kept = dict(MappedReader().iter_weights([path]))
    assert mapped_bytes(path) == 256 * MIB
    for number in range(16):
        assert mapped_bytes(path) == 256 * MIB
        del kept[f"t{number:02}"]
    assert mapped_bytes(path) == 256 * MIB - SEGMENT_BYTES
    kept.clear()
    assert mappings(path) == []


@pytest.mark.parametrize("number", [0, 15, 16, 40, 63])
def test_one_kept_tensor_keeps_one_segment(path: Path, number: int) -> None:
    kept = [(name, values) for name, values in MappedReader().iter_weights([path]) if name == f"t{number:02}"]
    assert mapped_bytes(path) == SEGMENT_BYTES
    del kept
    assert mappings(path) == []


def test_a_filter_maps_from_the_first_wanted_byte_to_the_last(path: Path) -> None:
    kept = list(MappedReader().iter_weights([path], key_filter={"t03", "t05", "t60"}.__contains__))
    assert sorted(size for size, _ in mappings(path)) == [4 * MIB, 12 * MIB]
    assert len(kept) == 3


def test_a_slice_maps_its_part_of_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_sparse(path, {"x": 128 * MIB})
    kept = list(MappedReader().iter_weights([path], slices={"x": TensorSlice(dim=0, start=32 * MIB, stop=48 * MIB)}))
    assert mapped_bytes(path) == 16 * MIB
    assert kept[0][1].numel() == 16 * MIB


def test_two_thousand_files_leave_neither_descriptors_nor_mappings(tmp_path: Path) -> None:
    data = write_tensors(tmp_path / "first", {"x": tensor("U8", 100)}).read_bytes()
    reader = MappedReader()
    with nothing_left_open():
        for number in range(2000):
            path = tmp_path / f"{number}.safetensors"
            path.write_bytes(data)
            (each,) = reader.iter_weights([path])
            assert each[1].numel() == 100
            path.unlink()
        del each
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_kept_tensors_of_many_files_hold_mappings_and_no_descriptors(tmp_path: Path) -> None:
    paths = [write_tensors(tmp_path / f"{n}.safetensors", {f"x{n}": tensor("U8", 9, seed=n)}) for n in range(300)]
    before = len(descriptors())
    kept = dict(MappedReader().iter_weights(paths))
    assert before == len(descriptors())
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 300
    assert [tensor("U8", 9, seed=n)[2] for n in range(300)] == [bits(kept[f"x{n}"]) for n in range(300)]


def test_writing_into_a_default_view_turns_its_pages_anonymous(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("F32", [MIB], noise(4) * MIB), "b": tensor("F32", 1024)})
    before = digest(path)
    kept = dict(MappedReader().iter_weights([path]))
    kept["a"].sum()
    assert smaps(path, "Anonymous") == 0
    kept["a"].mul_(2)
    assert 4 * MIB <= smaps(path, "Anonymous") <= 4 * MIB + 64 * 1024
    assert before == digest(path)
    kept.clear()
    assert smaps(path, "Anonymous") == 0


def test_a_read_only_mapping_has_no_permission_to_be_written(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 4096)})
    kept = dict(MappedReader(readonly=True).iter_weights([path]))
    kept["a"].sum()
    assert [permissions for _, permissions in mappings(path)] == ["r--p"]
    assert smaps(path, "Anonymous") == 0


def test_deleting_the_file_leaves_the_kept_tensors(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [5000], noise(5000))})
    kept = dict(MappedReader().iter_weights([path]))
    os.unlink(path)
    assert noise(5000) == bits(kept["a"])
