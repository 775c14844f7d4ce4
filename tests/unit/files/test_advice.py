# SPDX-License-Identifier: Apache-2.0
"""Advice: what it brings into the page cache, and how far ahead of the reading."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.measure import PAGE, cached_pages, check_cached, evict, pages_spanned

from weight_readers_files.advice import Ahead

MIB = 1 << 20
RANGES = [(0, MIB), (2 * MIB, MIB), (6 * MIB, 100)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(8 * MIB))
    evict(path)
    return path


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def check_arrives(path: Path, ranges: list[tuple[int, int]]) -> None:
    expected = {page for offset, length in ranges for page in pages_spanned(offset, offset + length)}
    deadline = time.monotonic() + 30
    while sum(cached_pages(path)) < len(expected) and time.monotonic() < deadline:
        time.sleep(0.01)
    check_cached(path, expected)


def test_it_runs_a_window_ahead_of_the_reading_and_brings_in_nothing_else(path: Path, descriptor: int) -> None:
    ahead = Ahead(RANGES, window=MIB)
    ahead.read_to(descriptor, PAGE)
    check_arrives(path, RANGES[:1])
    ahead.read_to(descriptor, MIB + PAGE)
    check_arrives(path, RANGES[:2])
    ahead.read_to(descriptor, 3 * MIB)
    check_arrives(path, RANGES[:2])
    ahead.read_to(descriptor, 8 * MIB)
    check_arrives(path, RANGES)


def test_each_part_is_asked_for_once(path: Path, descriptor: int) -> None:
    ahead = Ahead(RANGES, window=8 * MIB)
    ahead.read_to(descriptor, PAGE)
    check_arrives(path, RANGES)
    evict(path)
    ahead.read_to(descriptor, 8 * MIB)
    assert sum(cached_pages(path)) == 0


def test_what_the_system_refuses_is_no_error() -> None:
    Ahead(RANGES).read_to(-1, 1)
