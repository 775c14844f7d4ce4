# SPDX-License-Identifier: Apache-2.0
"""What a pass pulls from disk into the page cache: exactly the pages of what is wanted."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.files import entry, write_safetensors, write_tensors
from support.measure import (
    PAGE,
    cached_bytes,
    check_cached,
    check_cached_bytes,
    evict,
    nothing_left_open,
    pages_spanned,
)
from support.tensors import bits, noise, tensor, write_sparse

from weight_readers import TensorSlice
from weight_readers.reader import KeyFilter
from weight_readers_files.prefetch import WINDOW_BYTES
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
) -> set[int]:
    """Touch every byte of what is wanted, of a file that is not cached; returns the pages that hold it."""
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
    return wanted


def check_exact(
    options: dict[str, Any], path: Path, names: Container[str] = (), slices: dict[str, TensorSlice] | None = None
) -> None:
    """Only the wanted pages are read, in one of a few attempts.

    A page that the kernel drops again before it is touched comes back with a whole read-ahead window. That is rare;
    a reader that asks for too much does so in each attempt.
    """
    for _ in range(3):
        wanted = read_cold(MappedReader(**options), path, None if slices else names.__contains__, slices)
        with suppress(AssertionError):
            check_cached(path, wanted)
            return
    check_cached(path, read_cold(MappedReader(**options), path, None if slices else names.__contains__, slices))


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
    path = folder / "many.safetensors"
    check_exact(options, path, names)


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
    path = folder / "matrix.safetensors"
    check_exact(options, path, slices={"x": part})


def test_the_exact_eighth_is_an_eighth(folder: Path, options: dict[str, Any]) -> None:
    """Holds the arithmetic of these tests against the size of the file."""
    path = folder / "matrix.safetensors"
    wanted = read_cold(MappedReader(**options), path, slices={"x": TensorSlice(dim=0, start=256, stop=512)})
    assert 8 * MIB <= len(wanted) * PAGE <= path.stat().st_size // 8 + 2 * PAGE


def test_header_and_a_twentieth_together_are_a_twentieth_and_the_header(folder: Path, options: dict[str, Any]) -> None:
    """The header is read in windows, and the kernel reads ahead of those: under a mebibyte, however large the file."""
    path = folder / "many.safetensors"
    names = {f"t{number:03}" for number in range(200, 220)}
    cached = []
    for _ in range(3):
        evict(path)
        for _, values in MappedReader(**options).iter_weights([path], key_filter=names.__contains__):
            bits(values)
        cached.append(cached_bytes(path))
        del values  # Mapped pages cannot be evicted.
    assert min(cached) <= path.stat().st_size // 20 + MIB


def test_unaligned_tensors_are_read_no_further_than_they_go(tmp_path: Path, options: dict[str, Any]) -> None:
    tensors = {f"t{i:02}": tensor("F32", 50_000) for i in range(40)}
    path = write_tensors(tmp_path / "m.safetensors", {"odd": tensor("U8", 3), **tensors})
    check_exact(options, path, {"t03", "t20"})


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
        check_cached_bytes(long_file, 3 * 8 * MIB + WINDOW_BYTES)
        weights.close()  # type: ignore[attr-defined]
    assert cached_bytes(long_file) <= 3 * 8 * MIB + WINDOW_BYTES


def test_without_a_filter_views_cost_nothing_until_they_are_touched(long_file: Path, options: dict[str, Any]) -> None:
    if options.get("copy") or options.get("prefetch"):
        pytest.skip("reads by itself")
    reader = MappedReader(**options)
    reader.read_meta([long_file])
    evict(long_file)
    kept = list(reader.iter_weights([long_file]))
    assert cached_bytes(long_file) == 0
    assert len(kept) == 64
