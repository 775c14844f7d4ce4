# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.measure import PAGE, mappings, memory, smaps
from support.tensors import noise

from weight_readers_files.mapping import map_private, memory_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(noise(3 * PAGE))
    return path


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_mapping_holds_the_bytes_from_an_offset_on(path: Path, descriptor: int, readonly: bool) -> None:
    mapped = map_private(descriptor, PAGE, PAGE + 5, readonly=readonly)
    assert path.read_bytes()[PAGE : 2 * PAGE + 5] == bytes(mapped)
    assert [(2 * PAGE, "r--p" if readonly else "rw-p")] == mappings(path)


def test_a_mapping_ends_with_the_last_reference_and_a_tensor_is_one(path: Path, descriptor: int) -> None:
    mapped = map_private(descriptor, 0, PAGE, readonly=False)
    values = torch.frombuffer(mapped, dtype=torch.uint8, count=4, offset=8)[1:]
    del mapped
    assert len(mappings(path)) == 1
    del values
    assert mappings(path) == []


def test_a_mapping_needs_no_descriptor(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    mapped = map_private(descriptor, 0, PAGE, readonly=False)
    assert before == len(os.listdir("/proc/self/fd"))
    os.close(descriptor)
    assert path.read_bytes()[:PAGE] == bytes(mapped)


def test_a_write_copies_the_page_and_leaves_the_file_alone(path: Path, descriptor: int) -> None:
    before = path.read_bytes()
    mapped = map_private(descriptor, 0, 3 * PAGE, readonly=False)
    assert smaps(path, "Anonymous") == 0
    mapped[PAGE] ^= 1
    assert smaps(path, "Anonymous") == PAGE
    assert before == path.read_bytes()


def test_more_can_be_mapped_than_there_is_memory_to_copy_it_to(tmp_path: Path) -> None:
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "0":
        pytest.skip("only the kernel's default weighs each mapping against all of memory")
    total = os.sysconf("SC_PHYS_PAGES") * PAGE
    swap = int(next(li for li in Path("/proc/meminfo").read_text().splitlines() if "SwapTotal" in li).split()[1]) * 1024
    size = 2 * (total + swap)
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, size)
    descriptor = os.open(path, os.O_RDONLY)
    mapped = map_private(descriptor, 0, size, readonly=False)
    os.close(descriptor)
    assert (0, size) == (mapped[-1], len(mapped))
    assert memory("VmSize") > size


@pytest.mark.parametrize(("offset", "length", "number"), [(1, 1, errno.EINVAL), (0, 2**62, errno.ENOMEM)])
def test_a_failure_is_the_systems_own(descriptor: int, offset: int, length: int, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        map_private(descriptor, offset, length, readonly=False)
    assert number == caught.value.errno


def test_memory_of_a_tensor_can_be_written_through_a_view() -> None:
    values = torch.zeros(4, dtype=torch.uint8)
    memory_at(values.data_ptr(), 4)[1:3] = b"\7\7"
    assert values.tolist() == [0, 7, 7, 0]
