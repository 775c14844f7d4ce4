# SPDX-License-Identifier: Apache-2.0
"""What a read pulls from disk into the page cache: exactly the pages of what is wanted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.files import entry, write_safetensors, write_tensors
from support.measure import cached_pages, check_cached, evict, pages_spanned
from support.tensors import noise

from weight_readers import TensorSlice
from weight_readers_threaded.reader import ThreadedReader

MIB = 1 << 20


@pytest.mark.parametrize("threads", [1, 4])
def test_a_filter_brings_in_the_pages_of_what_it_takes_and_no_others(tmp_path: Path, threads: int) -> None:
    block = noise(3 * MIB + 101)
    size, count = len(block), 20
    header = {f"t{i:02}": entry("U8", [size], i * size, (i + 1) * size) for i in range(count)}
    path = write_safetensors(tmp_path / "many.safetensors", header, block * count)
    # Several requests one after the other in the file: to the kernel that looks like somebody who will go on.
    reader = ThreadedReader(num_threads=threads, chunk_bytes=MIB)
    meta = reader.read_meta([path])
    wanted = {"t03", "t11", "t12"}
    evict(path)
    targets = {name: torch.empty(size, dtype=torch.uint8) for name in wanted}
    reader.read_into([path], targets)
    pages = (pages_spanned(meta[name].offset, meta[name].offset + size) for name in wanted)
    check_cached(path, set().union(*pages))


def test_a_slice_brings_in_the_pages_of_its_rows_and_no_others(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": ("F32", [1024, 8192], noise(MIB) * 32)})
    reader = ThreadedReader()
    offset = reader.read_meta([path])["x"].offset
    evict(path)
    ((_, tensor),) = reader.iter_weights([path], slices={"x": TensorSlice(dim=0, start=128, stop=256)})
    assert tensor.shape == (128, 8192)
    check_cached(path, set(pages_spanned(offset + 4 * MIB, offset + 8 * MIB)))


def test_rows_and_columns_bring_in_the_pages_that_they_have_in_common(tmp_path: Path) -> None:
    """Rows of sixteen pages, which begin within a page."""
    path = write_tensors(
        tmp_path / "m.safetensors", {"pad": ("U8", [8], noise(8)), "x": ("F32", [64, 16384], noise(4 * MIB))}
    )
    reader = ThreadedReader()
    offset = reader.read_meta([path])["x"].offset
    evict(path)
    part = (TensorSlice(dim=0, start=8, stop=16), TensorSlice(dim=1, start=4096, stop=8192))
    ((_, tensor),) = reader.iter_weights([path], key_filter="x".__eq__, slices={"x": part})
    begins = [offset + 4 * (row * 16384 + 4096) for row in range(8, 16)]
    check_cached(path, set().union(*(pages_spanned(begin, begin + 4 * 4096) for begin in begins)))
    with safe_open(path, framework="pt") as file:
        assert torch.equal(file.get_slice("x")[8:16, 4096:8192].view(torch.int32), tensor.view(torch.int32))


def test_what_is_wanted_next_is_on_its_way_while_the_consumer_has_a_tensor(tmp_path: Path) -> None:
    block = noise(2 * MIB)
    header = {f"t{i}": entry("U8", [len(block)], i * len(block), (i + 1) * len(block)) for i in range(8)}
    path = write_safetensors(tmp_path / "many.safetensors", header, block * 8)
    reader = ThreadedReader(num_threads=1, max_in_flight_bytes=1)
    meta = reader.read_meta([path])
    evict(path)
    weights = reader.iter_weights([path], key_filter={"t1", "t4", "t6"}.__contains__)
    next(iter(weights))
    expected = {
        page for name in ("t1", "t4", "t6") for page in pages_spanned(meta[name].offset, meta[name].offset + len(block))
    }
    deadline = time.monotonic() + 30
    while sum(cached_pages(path)) < len(expected) and time.monotonic() < deadline:
        time.sleep(0.01)
    check_cached(path, expected)
