# SPDX-License-Identifier: Apache-2.0
"""Open files: short reads, early ends, errors of the system, and files that change."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import SECONDS, Read, failing, short, whole
from support.measure import descriptors

from weight_readers import CheckpointError, FileChangedError, TruncatedFileError, UnreadableFileError
from weight_readers_files import State
from weight_readers_threaded.files import OpenFile, OpenFiles, buffered, read_all

CONTENT = bytes(range(100))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path / "file"


def filled(path: Path, *sizes: int, read: Read = buffered, offset: int = 0) -> list[bytes]:
    """What is read into buffers of these sizes."""
    buffers = [bytearray(size) for size in sizes]
    file = OpenFile(str(path))
    try:
        views = [memoryview(buffer) for buffer in buffers]
        read_all(read, file, views, offset, name="t{}".format, proceed=lambda: None)
    finally:
        file.close()
    return [bytes(buffer) for buffer in buffers]


@pytest.mark.parametrize("read", [buffered, whole, short(), short(1)], ids=["own", "whole", "short", "single"])
def test_buffers_are_filled_one_after_the_other(path: Path, read: Read) -> None:
    assert [CONTENT[3:4], CONTENT[4:54], CONTENT[54:97]] == filled(path, 1, 50, 43, read=read, offset=3)


def test_the_end_of_the_file_within_a_tensor_is_a_truncation_that_names_it(path: Path) -> None:
    with pytest.raises(TruncatedFileError) as caught:
        filled(path, 60, 60)
    found = caught.value
    assert (str(path), "t1", "20 more bytes at 100") == (found.path, found.tensor, found.expected)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EFAULT])
def test_an_error_of_the_system_keeps_its_reason_and_names_the_tensor(path: Path, code: int) -> None:
    with pytest.raises(UnreadableFileError) as caught:
        filled(path, 10, 10, 10, read=failing(OSError(code, os.strerror(code)), begin=25))
    assert ("t0", f"{os.strerror(code)} {errno.errorcode[code]}") == (caught.value.tensor, caught.value.found)


def test_the_tensor_is_the_one_whose_bytes_were_next(path: Path) -> None:
    reads = short(10)
    broken = failing(OSError(errno.EIO, "gone"), begin=25)

    def read(file: OpenFile, buffers: list[memoryview], offset: int) -> int:
        return reads(file, buffers, offset) if offset < 20 else broken(file, buffers, offset)

    with pytest.raises(UnreadableFileError) as caught:
        filled(path, 20, 10, read=read)  # type: ignore[arg-type]
    assert caught.value.tensor == "t1"


def test_more_than_the_kernel_reads_in_one_call_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: asked.append([len(b) for b in buffers]) or 1)

    class Long:
        """A buffer of 3 GiB without memory."""

        def __init__(self, length: int) -> None:
            self._length = length

        def __len__(self) -> int:
            return self._length

        def __getitem__(self, part: slice) -> Long:
            return Long(len(range(self._length)[part]))

    file = OpenFile(os.devnull)
    try:
        buffered(file, [Long(3 << 30)], 0)  # type: ignore[list-item]
        buffered(file, [Long(10), Long(3 << 30)], 0)  # type: ignore[list-item]
    finally:
        file.close()
    assert asked == [[0x7FFFF000], [10, 3 << 30]]


def test_reading_stops_between_short_reads(path: Path) -> None:
    class Enough(Exception):
        pass

    left = iter([True, True, False])

    def proceed() -> None:
        if not next(left):
            raise Enough

    file = OpenFile(str(path))
    buffer = bytearray(100)
    try:
        with pytest.raises(Enough):
            read_all(short(1), file, [memoryview(buffer)], 0, name=str, proceed=proceed)
    finally:
        file.close()
    assert CONTENT[:2] == bytes(buffer)[:2]
    assert not any(buffer[2:])


def rewritten(path: Path) -> None:
    path.write_bytes(CONTENT[::-1])


def grown(path: Path) -> None:
    path.write_bytes(CONTENT + b"x")


def cut(path: Path) -> None:
    os.truncate(path, 50)


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(CONTENT)
    os.replace(other, path)


def turned_into_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def turned_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES = [rewritten, grown, cut, removed, replaced, turned_into_a_fifo, turned_into_a_folder]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_before_it_was_opened_is_refused(path: Path, change: Callable[[Path], None]) -> None:
    expected = State.of(path.stat())
    os.utime(path, ns=(0, 0))
    expected = State.of(path.stat())
    change(path)
    before = descriptors()
    with pytest.raises(FileChangedError) as caught:
        OpenFile(str(path), expected)
    assert str(path) == caught.value.path
    assert before == descriptors()


@pytest.mark.parametrize("change", [rewritten, grown, cut])
def test_a_file_that_is_written_to_while_it_is_open_is_noticed(path: Path, change: Callable[[Path], None]) -> None:
    os.utime(path, ns=(0, 0))
    file = OpenFile(str(path), State.of(path.stat()))
    try:
        file.check("t")
        change(path)
        with pytest.raises(FileChangedError) as caught:
            file.check("t")
    finally:
        file.close()
    assert caught.value.tensor == "t"


@pytest.mark.parametrize("change", [removed, replaced, turned_into_a_fifo])
def test_a_name_that_leads_elsewhere_meanwhile_does_not_matter(path: Path, change: Callable[[Path], None]) -> None:
    file = OpenFile(str(path), State.of(path.stat()))
    try:
        change(path)
        buffer = bytearray(100)
        read_all(buffered, file, [memoryview(buffer)], 0, name=str, proceed=lambda: None)
        file.check()
    finally:
        file.close()
    assert bytes(buffer) == CONTENT


def test_a_cut_file_is_a_changed_one_rather_than_a_truncated_one(path: Path) -> None:
    file = OpenFile(str(path), State.of(path.stat()))
    try:
        cut(path)
        with pytest.raises(FileChangedError):
            read_all(buffered, file, [memoryview(bytearray(100))], 0, name=str, proceed=lambda: None)
    finally:
        file.close()


def test_a_file_without_permission_is_unreadable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableFileError, match="Permission denied EACCES"):
        OpenFile(str(path))


@pytest.mark.parametrize("following", [None, "another"])
def test_a_file_is_opened_at_its_first_request_and_closed_after_its_last(path: Path, following: str | None) -> None:
    opened = []

    def open_file(name: str) -> OpenFile:
        opened.append(OpenFile(name))
        return opened[-1]

    files = OpenFiles(open_file)
    for _ in range(3):
        files.begin(str(path))
    assert opened == []
    for count in (1, 2, 3):
        file = files.get(str(path))
        assert file is opened[0]
        files.done(str(path))
        if count == 2:
            files.begin(following)
        assert (count < 3) == (file.fd in map(int, descriptors()))
    assert len(opened) == 1


def test_a_file_stays_open_between_its_requests_until_there_are_no_more(path: Path) -> None:
    files = OpenFiles(lambda name: OpenFile(name))
    files.begin(str(path))
    file = files.get(str(path))
    files.done(str(path))
    files.begin(str(path))
    assert files.get(str(path)) is file
    files.done(str(path))
    assert file.fd in map(int, descriptors())
    files.begin(None)
    assert file.fd not in map(int, descriptors())


def test_a_file_that_cannot_be_opened_fails_each_of_its_requests(path: Path) -> None:
    def open_file(name: str) -> OpenFile:
        raise UnreadableFileError("no", path=name)

    files = OpenFiles(open_file)
    for _ in range(2):
        files.begin(str(path))
        with pytest.raises(CheckpointError):
            files.get(str(path))
        files.done(str(path))


def test_threads_share_one_descriptor(path: Path) -> None:
    files = OpenFiles(lambda name: OpenFile(name))
    got = []
    threads = [threading.Thread(target=lambda: got.append(files.get(str(path)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert (len(got), len({file.fd for file in got})) == (8, 1)
    files.close()
