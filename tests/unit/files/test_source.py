# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.measure import PAGE, cached_pages, check_cached, descriptors, evict, pages_spanned
from support.tensors import noise

from weight_readers import FileChangedError, TruncatedFileError, UnreadableFileError
from weight_readers_files import State
from weight_readers_files.source import Source, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(noise(64 * PAGE))
    os.utime(path, (1, 1))  # A write may fall within the same tick of the clock.
    return path


@given(st.binary(max_size=60), st.integers(0, 70), st.integers(0, 70), st.integers(1, 9), st.lists(st.integers(1, 5)))
def test_short_reads_are_gone_on_with(data: bytes, offset: int, length: int, at_once: int, counts: list[int]) -> None:
    requests = []

    def read_at(buffer: memoryview, position: int) -> int:
        requests.append(len(buffer))
        part = data[position : position + min(len(buffer), counts.pop() if counts else 5)]
        buffer[: len(part)] = part
        return len(part)

    target = bytearray(length)
    count = fill(read_at, memoryview(target), offset, at_once=at_once)
    expected = data[offset : offset + length]
    assert (len(expected), expected) == (count, bytes(target[:count]))
    assert all(request <= at_once for request in requests)


def test_bytes_are_read_from_an_offset(path: Path) -> None:
    target = bytearray(10)
    with Source(str(path)) as source:
        source.read_into(memoryview(target), 77)
    assert path.read_bytes()[77:87] == target


def test_an_early_end_names_the_tensor_and_both_counts(path: Path) -> None:
    with Source(str(path)) as source, pytest.raises(TruncatedFileError) as caught:
        source.read_into(memoryview(bytearray(10)), 64 * PAGE - 4, tensor="w")
    assert (str(path), "w", f"10 bytes at {64 * PAGE - 4}", "4 bytes") == (
        caught.value.path,
        caught.value.tensor,
        caught.value.expected,
        caught.value.found,
    )


def test_an_early_end_of_a_file_that_was_cut_is_a_change(path: Path) -> None:
    with Source(str(path)) as source:
        os.truncate(path, 10)
        with pytest.raises(FileChangedError):
            source.read_into(memoryview(bytearray(10)), 5)


def test_a_read_that_fails_is_typed() -> None:
    # Nothing is mapped at address 0 of a process, and reading there is an I/O error.
    with Source("/proc/self/mem") as source, pytest.raises(UnreadableFileError) as caught:
        source.read_into(memoryview(bytearray(10)), 0, tensor="w")
    assert ("/proc/self/mem", "w", os.strerror(5)) == (caught.value.path, caught.value.tensor, caught.value.found)


@pytest.mark.parametrize("change", ["write", "cut", "grow"])
def test_a_change_in_place_is_seen(path: Path, change: str) -> None:
    with Source(str(path)) as source:
        source.check()
        with path.open("r+b") as file:
            if change == "write":
                file.write(b"x")
            else:
                file.truncate(10 if change == "cut" else 65 * PAGE)
        with pytest.raises(FileChangedError) as caught:
            source.check("w")
    assert (str(path), "w") == (caught.value.path, caught.value.tensor)
    assert "replace files by rename" in str(caught.value)


def test_a_replacement_leaves_the_open_file_as_it_was(path: Path, tmp_path: Path) -> None:
    old = path.read_bytes()
    (tmp_path / "new").write_bytes(b"new")
    with Source(str(path)) as source:
        (tmp_path / "new").replace(path)
        source.check()
        assert old == bytes(source.map(0, len(old))[0])


def test_another_file_than_the_one_whose_header_was_read_is_refused_and_closed(path: Path) -> None:
    seen = State.of(path.stat())
    path.write_bytes(b"other")
    with pytest.raises(FileChangedError):
        Source(str(path), seen)
    assert str(path) not in descriptors().values()


def test_a_file_that_is_gone_says_so(path: Path) -> None:
    path.unlink()
    with pytest.raises(FileChangedError, match="removed after its header was read"):
        Source(str(path))


def test_a_file_that_cannot_be_opened_is_unreadable(path: Path) -> None:
    link = path.with_name("loop")
    link.symlink_to(link)
    with pytest.raises(UnreadableFileError, match="cannot open"):
        Source(str(link))


@pytest.mark.parametrize("readonly", [False, True])
def test_a_fifo_in_place_of_the_file_does_not_block(path: Path, readonly: bool) -> None:
    seen = State.of(path.stat())
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileChangedError):
        Source(str(path), seen, readonly=readonly)


@pytest.mark.parametrize("begin", [0, 1, PAGE - 1, PAGE, PAGE + 1])
@pytest.mark.parametrize("length", [1, PAGE, PAGE + 1])
def test_a_mapping_may_begin_and_end_anywhere(path: Path, begin: int, length: int) -> None:
    with Source(str(path)) as source:
        mapped, base = source.map(begin, begin + length)
    assert (begin - PAGE < base <= begin, base % PAGE) == (True, 0)
    assert path.read_bytes()[begin : begin + length] == bytes(mapped[begin - base : begin - base + length])


def test_a_mapping_that_fails_says_what_helps(path: Path) -> None:
    with Source(str(path)) as source, pytest.raises(UnreadableFileError) as caught:
        source.map(0, 2**62)
    assert (str(path), os.strerror(12)) == (caught.value.path, caught.value.found)
    for help_ in ("ulimit -v", "in slices", "readonly=True", "copy=True"):
        assert help_ in str(caught.value)
    with Source(str(path), readonly=True) as source, pytest.raises(UnreadableFileError) as caught:
        source.map(0, 2**62)
    assert "readonly" not in str(caught.value)


def test_a_file_that_no_mapping_can_be_made_of_says_to_copy() -> None:
    with Source("/proc/self/status") as source, pytest.raises(UnreadableFileError, match="copy=True"):
        source.map(0, 10)


@pytest.mark.parametrize("span", [(0, 1), (5 * PAGE + 7, 1), (5 * PAGE - 1, 2), (3 * PAGE, 40 * PAGE), (9, 63 * PAGE)])
def test_advice_alone_pulls_in_exactly_the_pages_of_a_range(path: Path, span: tuple[int, int]) -> None:
    evict(path)
    expected = pages_spanned(span[0], sum(span))
    deadline = time.monotonic() + 10
    with Source(str(path)) as source:
        source.will_need([span])
        while not expected <= cached(path) and time.monotonic() < deadline:
            time.sleep(0.01)
            source.will_need([span])  # The kernel may have dropped one already.
    check_cached(path, expected)
    assert time.monotonic() < deadline


def cached(path: Path) -> set[int]:
    return {number for number, there in enumerate(cached_pages(path)) if there}


def test_exact_reads_pull_in_nothing_else_without_advice(path: Path) -> None:
    evict(path)
    with Source(str(path), exact=True) as source:
        source.read_into(memoryview(bytearray(3 * PAGE)), 2 * PAGE)
        source.read_into(memoryview(bytearray(3 * PAGE)), 5 * PAGE)
    check_cached(path, set(range(2, 8)))
