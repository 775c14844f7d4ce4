# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from benchmarks import data
from benchmarks.conditions import MemorySampler, cached_share, evict, resident, warm
from benchmarks.delivered import check, existing
from benchmarks.entries import matrix_rows, read_entries, some_keys
from benchmarks.limit import Call, calls, read_all
from benchmarks.slowfs import SlowMount
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> data.Checkpoint:
    return data.model(tmp_path_factory.mktemp("data"), 1 << 20, shards=2)


def test_the_same_seed_makes_the_same_bytes(checkpoint: data.Checkpoint, tmp_path: Path) -> None:
    again = data.model(tmp_path, 1 << 20, shards=2)
    for one, other in zip(checkpoint.files, again.files, strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes()


def test_a_checkpoint_is_made_once(checkpoint: data.Checkpoint) -> None:
    before = os.stat(checkpoint.files[0]).st_mtime_ns
    assert checkpoint == data.model(Path(checkpoint.files[0]).parents[1], 1 << 20, shards=2)
    assert before == os.stat(checkpoint.files[0]).st_mtime_ns


def test_a_twin_holds_the_same_tensors(checkpoint: data.Checkpoint) -> None:
    for path, twin in zip(checkpoint.files, checkpoint.twins, strict=True):
        tensors, same = load_file(path), torch.load(twin, weights_only=True)
        assert set(tensors) == set(same)
        assert all(torch.equal(tensors[n].view(torch.int16), same[n].view(torch.int16)) for n in tensors)


def test_small_tensors_are_as_many_as_asked_for(tmp_path: Path) -> None:
    made = data.small(tmp_path, 100, shards=3)
    entries = read_entries(made.files)
    assert (len(entries), len({entry.name for entry in entries})) == (100, 100)
    assert made.nbytes == sum(entry.nbytes for entry in entries)


def test_entries_are_those_of_the_safetensors_library(checkpoint: data.Checkpoint) -> None:
    for path in checkpoint.files:
        tensors = load_file(path)
        found = {entry.name: (entry.dtype, entry.shape) for entry in read_entries([path])}
        assert found == {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def test_keys_are_a_twentieth_and_rows_an_eighth_of_every_matrix(checkpoint: data.Checkpoint) -> None:
    entries = read_entries(checkpoint.files)
    assert -(-len(entries) // 20) == len(some_keys(entries))
    matrices = [entry for entry in entries if len(entry.shape) == 2]
    assert sum(entry.nbytes for entry in matrices) / 8 == sum(entry.nbytes for entry in matrix_rows(entries))


def test_one_wrong_byte_or_one_tensor_too_few_is_noticed(checkpoint: data.Checkpoint) -> None:
    entries = read_entries(checkpoint.files)
    right = {entry.name: torch.from_numpy(entry.expected()).view(entry.dtype).view(entry.shape) for entry in entries}
    check(right, entries)
    name = entries[-1].name
    right[name].view(torch.uint8)[-1] ^= 1
    with pytest.raises(AssertionError, match=name):
        check(right, entries)
    del right[name]
    with pytest.raises(AssertionError, match="tensors were delivered"):
        check(right, entries)


def test_the_limit_joins_what_adjoins_and_fills_the_targets(checkpoint: data.Checkpoint) -> None:
    entries = read_entries(checkpoint.files)
    targets = existing(entries)
    descriptors = {path: os.open(path, os.O_RDONLY) for path in checkpoint.files}
    made = calls(entries, targets, descriptors)
    read_all(made)
    for descriptor in descriptors.values():
        os.close(descriptor)
    assert len(checkpoint.files) == len(made)
    check(targets, entries)


def test_a_read_that_comes_back_short_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    whole = os.preadv

    def at_most_seven(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return whole(descriptor, [buffers[0][:7]], offset)

    monkeypatch.setattr(os, "preadv", at_most_seven)
    one, other = bytearray(10), bytearray(20)
    descriptor = os.open(path, os.O_RDONLY)
    Call(descriptor, 3, 30, [memoryview(one), memoryview(other)]).read()
    assert bytes(range(3, 33)) == bytes(one + other)
    with pytest.raises(EOFError, match="ends at 100"):
        Call(descriptor, 95, 10, [memoryview(one)]).read()
    os.close(descriptor)


def test_eviction_empties_the_page_cache_and_warming_fills_it(checkpoint: data.Checkpoint) -> None:
    evict(checkpoint.files)
    if cached_share(checkpoint.files):
        pytest.skip("this file system keeps its pages; set --basetemp to a disk")
    warm(checkpoint.files)
    assert cached_share(checkpoint.files) == 1


def test_the_sampler_sees_the_memory_of_a_process_between_two_times() -> None:
    with MemorySampler(os.getpid(), interval=0.001) as sampler:
        held = bytearray(b"x" * (64 << 20))
        threading.Event().wait(0.1)
        anon = resident()[0]
    peak, _ = sampler.peak(0, 1 << 62)
    assert abs(anon - peak) < 32 << 20
    assert sampler.peak(0, 1) == (0, 0)
    del held


def test_a_slow_mount_delivers_the_same_bytes_and_counts_requests(checkpoint: data.Checkpoint, tmp_path: Path) -> None:
    source = Path(checkpoint.files[0]).parent
    try:
        mount = SlowMount(source, tmp_path / "mount", latency_ms=0.1)
    except OSError as error:
        pytest.skip(f"no FUSE mount here: {error}")
    with mount:
        slow = checkpoint.beneath(mount.folder)
        for path, same in zip(slow.files, checkpoint.files, strict=True):
            assert Path(same).read_bytes() == Path(path).read_bytes()
    assert int(mount.served.split()[0]) > 0
    assert not os.path.ismount(tmp_path / "mount")
