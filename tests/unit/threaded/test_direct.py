# SPDX-License-Identifier: Apache-2.0
"""Direct reads: any offset and length, when they are taken, and what happens where there are none."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import write_tensors
from support.measure import PAGE, cached_bytes, descriptors, evict
from support.tensors import bits, noise

from weight_readers import UnreadableFileError
from weight_readers_files import FilePlan, State, Wanted
from weight_readers_threaded import direct
from weight_readers_threaded.direct import SCRATCH_BYTES, Opener, cached_fraction, open_direct
from weight_readers_threaded.files import OpenFile, read_all
from weight_readers_threaded.reader import ThreadedReader

SIZE = SCRATCH_BYTES + 3 * PAGE + 123
CONTENT = noise(SIZE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file on a disk that has direct reads; where the temporary folder has none, the test is skipped."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct reads; set --basetemp to a disk")
    return path


@pytest.fixture
def no_direct_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file system that refuses O_DIRECT when a file is opened, as tmpfs did before Linux 6.6."""
    really = os.open

    def refuse(path: Any, flags: int, *args: Any, **keywords: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return really(path, flags, *args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


@pytest.mark.parametrize(
    ("offset", "sizes"),
    [
        (0, [SIZE]),
        (0, [1]),
        (1, [SIZE - 1]),
        (4095, [2, 4096, 1]),
        (4096, [4096]),
        (SIZE - 1, [1]),
        (SIZE - 200, [77, 123]),
        (SCRATCH_BYTES - 3, [7, 5]),
        (17, [SCRATCH_BYTES, 5, 1000]),
    ],
)
def test_any_bytes_are_read_whatever_their_alignment(path: Path, offset: int, sizes: list[int]) -> None:
    file = open_direct(str(path), None)
    buffers = [bytearray(size) for size in sizes]
    try:
        read_all(direct.read, file, list(map(memoryview, buffers)), offset, name=str, proceed=lambda: None)
    finally:
        file.close()
    assert CONTENT[offset : offset + sum(sizes)] == b"".join(buffers)


def whole(path: Path, state: State | None = None) -> FilePlan:
    """All of the file as one tensor."""
    return FilePlan(str(path), state, [Wanted("a", torch.uint8, (SIZE,), None, ((0, SIZE),), 0, SIZE, SIZE)], False)


def opened(path: Path, mode: str) -> OpenFile:
    opener = Opener(mode, [whole(path, State.of(path.stat()))])
    file = opener.open(str(path))
    file.close()
    return file


def test_on_is_direct_whatever_is_cached_and_off_never(path: Path) -> None:
    path.read_bytes()
    assert [opened(path, mode).direct for mode in ("on", "off")] == [True, False]
    evict(path)
    assert [opened(path, mode).direct for mode in ("on", "off")] == [True, False]


def test_auto_is_direct_for_what_is_not_cached(path: Path) -> None:
    if cached_fraction(str(path), 0, SIZE) is None:
        pytest.skip("this kernel does not tell what is cached")
    path.read_bytes()
    assert not opened(path, "auto").direct
    evict(path)
    assert opened(path, "auto").direct


def test_direct_reads_leave_nothing_in_the_cache(tmp_path: Path, path: Path) -> None:
    shard = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [SIZE], CONTENT)})
    evict(shard)
    ((_, tensor),) = ThreadedReader(direct_io="on").iter_weights([shard])
    assert bits(tensor) == CONTENT
    # The header is read through the cache, with what the kernel reads ahead of it.
    assert cached_bytes(shard) < SIZE / 2


def test_what_is_cached_is_counted_in_pages_of_the_range(path: Path) -> None:
    if cached_fraction(str(path), 0, SIZE) is None:
        pytest.skip("this kernel does not tell what is cached")
    evict(path)
    assert cached_fraction(str(path), 0, SIZE) == 0.0
    path.read_bytes()
    assert (cached_fraction(str(path), 0, SIZE), cached_fraction(str(path), 5, 6)) == (1.0, 1.0)
    assert cached_fraction(str(path), 5, 5) == 1.0


def test_what_cannot_be_looked_at_is_not_known(tmp_path: Path) -> None:
    assert cached_fraction(str(tmp_path / "nothing"), 0, 10) is None


def test_on_is_refused_where_there_are_no_direct_reads(path: Path, no_direct_reads: None) -> None:
    before = descriptors()
    with pytest.raises(UnreadableFileError, match="the file system has no direct reads") as caught:
        opened(path, "on")
    assert (str(path), "Pass direct_io='off' or 'auto'") == (caught.value.path, caught.value.fix)
    assert before == descriptors()


def test_auto_falls_back_with_one_word_in_the_log(
    path: Path, no_direct_reads: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(direct, "cached_fraction", lambda *args: 0.0)
    opener = Opener("auto", [whole(path)])
    with caplog.at_level(logging.WARNING, "weight_readers.threaded"):
        for _ in range(3):
            file = opener.open(str(path))
            file.close()
            assert not file.direct
    assert [f"buffered reads, because the file system has no direct ones: {path}"] == caplog.messages


def test_auto_reads_through_the_cache_where_the_kernel_does_not_tell(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(direct, "cached_fraction", lambda *args: None)
    with caplog.at_level(logging.WARNING, "weight_readers.threaded"):
        assert not opened(path, "auto").direct
    assert [f"buffered reads, because the kernel does not tell what is cached: {path}"] == caplog.messages


def test_a_file_system_that_takes_the_flag_and_refuses_the_read_has_no_direct_reads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", refuse)
        with pytest.raises(UnreadableFileError, match="the file system has no direct reads"):
            opened(path, "on")
        patch.setattr(direct, "cached_fraction", lambda *args: 0.0)
        assert not opened(path, "auto").direct
    assert before == descriptors()


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_another_error_is_no_reason_to_fall_back(path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "cached_fraction", lambda *args: 0.0)

    def fail(*args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(UnreadableFileError, match="EIO"):
        opened(path, mode)
