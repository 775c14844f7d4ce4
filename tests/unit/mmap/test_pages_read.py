# SPDX-License-Identifier: Apache-2.0
"""What a pass pulls from disk into the page cache: exactly the pages of what is wanted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.files import entry, write_safetensors, write_tensors
from support.measure import PAGE, cached_bytes, cached_pages, evict, nothing_left_open, pages_spanned
from support.tensors import bits, noise, tensor, write_sparse

from weight_readers import TensorSlice
from weight_readers.reader import KeyFilter
from weight_readers_mmap.prefetch import WINDOW_BYTES
from weight_readers_mmap.reader import MappedReader

MIB = 1 << 20
COUNT = 400
MODES: tuple[dict[str, Any], ...] = (
    {},
    {"readonly": True},
    {"copy": True},
    {"prefetch": 2},
    {"copy": True, "prefetch": 2},
)

pytestmark = pytest.mark.parametrize("options", MODES, ids=str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of 64 MiB: 400 tensors of odd sizes, and one matrix of 2048 rows."""
    folder = tmp_path_factory.mktemp("pages")
    block = noise(160 * 1024 + 101)
    size = len(block)
    header = {f"t{i:03}": entry("U8", [size], i * size, (i + 1) * size) for i in range(COUNT)}
    write_safetensors(folder / "many.safetensors", header, block * COUNT)
    write_tensors(folder / "matrix.safetensors", {"x": ("F32", [2048, 8192], noise(MIB) * 64)})
    return folder


def read_cold(
    reader: MappedReader, path: Path, key_filter: KeyFilter | None = None, slices: dict[str, TensorSlice] | None = None
) -> tuple[set[int], set[int]]:
    """Touch every byte of what is wanted; returns the pages that are cached then, and those that had to be."""
    meta = reader.read_meta([path])
    evict(path)
    wanted: set[int] = set()
    for name, values in reader.iter_weights([path], key_filter=key_filter, slices=slices):
        bits(values)
        each = meta[name]
        if slices is None:
            wanted |= pages_spanned(each.offset, each.offset + each.nbytes)
        else:
            wanted |= _pages_of_slice(each.offset, each.shape, slices[name])
    return {number for number, cached in enumerate(cached_pages(path)) if cached}, wanted


def _pages_of_slice(offset: int, shape: tuple[int, ...], part: TensorSlice) -> set[int]:
    rows, columns = (range(size) for size in shape)
    if part.dim == 0:
        rows = rows[part.start : part.stop]
    else:
        columns = columns[part.start : part.stop]
    row = 4 * shape[1]
    begin, end = 4 * columns.start, 4 * columns.stop
    return set().union(*(pages_spanned(offset + at * row + begin, offset + at * row + end) for at in rows))


@pytest.mark.parametrize(
    "wanted",
    [range(7, COUNT, 20), range(20), range(COUNT - 20, COUNT), [*range(100, 110), *range(300, 310)]],
    ids=["every 20th", "the first", "the last", "two runs"],
)
def test_a_filter_for_a_twentieth_reads_that_twentieth(
    folder: Path, options: dict[str, Any], wanted: list[int]
) -> None:
    names = {f"t{number:03}" for number in wanted}
    assert len(names) == COUNT // 20
    cached, expected = read_cold(MappedReader(**options), folder / "many.safetensors", names.__contains__)
    assert expected == cached


@pytest.mark.parametrize(
    "part",
    [
        TensorSlice(dim=0, start=512, stop=768),
        TensorSlice(dim=0, start=1792),
        TensorSlice(dim=0, stop=1),
        TensorSlice(dim=1, start=1024, stop=2048),
        TensorSlice(dim=1, start=8191),
    ],
    ids=str,
)
def test_a_slice_reads_its_pages(folder: Path, options: dict[str, Any], part: TensorSlice) -> None:
    cached, expected = read_cold(MappedReader(**options), folder / "matrix.safetensors", slices={"x": part})
    assert expected == cached


def test_an_eighth_of_the_rows_costs_an_eighth_of_the_file(folder: Path, options: dict[str, Any]) -> None:
    slices = {"x": TensorSlice(dim=0, start=256, stop=512)}
    cached, _ = read_cold(MappedReader(**options), folder / "matrix.safetensors", slices=slices)
    assert 8 * MIB <= len(cached) * PAGE <= 8 * MIB + 2 * PAGE


def test_header_and_a_twentieth_together_are_a_twentieth_and_the_header(folder: Path, options: dict[str, Any]) -> None:
    """The header is read in windows, and the kernel reads ahead of those: under a mebibyte, however large the file."""
    path = folder / "many.safetensors"
    evict(path)
    names = {f"t{number:03}" for number in range(200, 220)}
    for _, values in MappedReader(**options).iter_weights([path], key_filter=names.__contains__):
        bits(values)
    assert cached_bytes(path) <= path.stat().st_size // 20 + MIB


def test_unaligned_tensors_are_read_no_further_than_they_go(tmp_path: Path, options: dict[str, Any]) -> None:
    tensors = {f"t{i:02}": tensor("F32", 50_000) for i in range(40)}
    path = write_tensors(tmp_path / "m.safetensors", {"odd": tensor("U8", 3), **tensors})
    cached, expected = read_cold(MappedReader(**options), path, {"t03", "t20"}.__contains__)
    assert expected == cached


def _settled(path: Path, expected: int) -> int:
    """The cached bytes once there are as many as expected, and after some rest in which more could come."""
    deadline = time.monotonic() + 20
    while cached_bytes(path) < expected and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    return cached_bytes(path)


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("long") / "m.safetensors"
    write_sparse(path, {f"t{number:03}": 8 * MIB for number in range(64)})
    yield path
    path.unlink()


def test_prefetch_runs_one_window_ahead_of_a_slow_consumer(long_file: Path, options: dict[str, Any]) -> None:
    if "prefetch" not in options:
        pytest.skip("nothing runs ahead")
    reader = MappedReader(**options)
    reader.read_meta([long_file])
    evict(long_file)
    with nothing_left_open():
        weights = iter(reader.iter_weights([long_file]))
        for _ in range(3):
            next(weights)
        ahead = 3 * 8 * MIB + WINDOW_BYTES
        assert ahead == _settled(long_file, ahead)
        weights.close()  # type: ignore[attr-defined]
    assert ahead == cached_bytes(long_file)


def test_without_a_filter_views_cost_nothing_until_they_are_touched(long_file: Path, options: dict[str, Any]) -> None:
    if options.get("copy") or options.get("prefetch"):
        pytest.skip("reads by itself")
    reader = MappedReader(**options)
    reader.read_meta([long_file])
    evict(long_file)
    kept = list(reader.iter_weights([long_file]))
    assert cached_bytes(long_file) == 0
    assert len(kept) == 64
