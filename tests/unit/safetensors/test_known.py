# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.files import floats, write_tensors

from weight_readers import CheckpointNotFoundError, DuplicateTensorError, TruncatedFileError
from weight_readers_files import State
from weight_readers_safetensors import HeaderCache, known


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tensors(tmp_path / "a.safetensors", {"w": ("F32", [1], floats(1))})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Each set of files whose headers were really read."""
    seen: list[object] = []
    original = known.read_headers
    monkeypatch.setattr(known, "read_headers", lambda files: seen.append(files) or original(files))
    return seen


def test_headers_of_unchanged_files_are_read_once(path: Path, reads: list[object]) -> None:
    cache = HeaderCache()
    assert cache.read([path]).meta == cache.read([str(path)]).meta
    assert len(reads) == 1


def test_the_state_is_that_of_the_file(path: Path) -> None:
    status = path.stat()
    states = HeaderCache().read([path]).states
    assert states == {str(path): State(status.st_size, status.st_mtime_ns)}


def test_a_rewritten_file_is_read_again(path: Path, reads: list[object]) -> None:
    cache = HeaderCache()
    cache.read([path])
    write_tensors(path, {"other": ("F32", [1], floats(2))})
    assert list(cache.read([path]).meta) == ["other"]
    assert len(reads) == 2


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_read_again(path: Path, reads: list[object]) -> None:
    cache = HeaderCache()
    cache.read([path])
    status = path.stat()
    other = write_tensors(path.with_name("b"), {"v": ("F32", [1], floats(2))})
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert list(cache.read([path]).meta) == ["v"]


def test_other_files_are_read_in_their_own_right(path: Path, reads: list[object]) -> None:
    cache = HeaderCache()
    other = write_tensors(path.with_name("b.safetensors"), {"v": ("F32", [1], floats(2))})
    assert [list(cache.read(files).meta) for files in ([path], [other], [other, path])] == [["w"], ["v"], ["w", "v"]]
    assert len(reads) == 3


def test_another_thread_that_asks_meanwhile_changes_no_answer(path: Path) -> None:
    cache = HeaderCache()
    other = write_tensors(path.with_name("b.safetensors"), {"v": ("F32", [1], floats(2))})

    class Switching(str):
        """While it is looked for among the known ones, it is another thread's turn, once."""

        turns = 1
        __hash__ = str.__hash__

        def __eq__(self, to: object) -> bool:
            if self.turns:
                self.turns = 0
                cache.read([other])
            return str.__eq__(self, to)

    first = cache.read([str(path)])
    assert (list(first.meta), list(cache.read([Switching(path)]).meta)) == (["w"], ["w"])


def test_what_is_wrong_is_raised_each_time_and_a_mended_file_is_read(path: Path) -> None:
    cache, whole = HeaderCache(), path.read_bytes()
    path.write_bytes(whole[:-1])
    for _ in range(2):
        with pytest.raises(TruncatedFileError):
            cache.read([path])
    path.write_bytes(whole)
    assert list(cache.read([path]).meta) == ["w"]


def test_files_that_were_read_vouch_for_no_others(path: Path) -> None:
    """A file given twice has one state, and one that is not there has none: the states alone tell no difference."""
    cache = HeaderCache()
    cache.read([path])
    with pytest.raises(DuplicateTensorError):
        cache.read([path, path])
    with pytest.raises(CheckpointNotFoundError):
        cache.read([path, path.with_name("missing")])


def test_caches_have_what_another_one_read_while_it_is_kept(path: Path, reads: list[object]) -> None:
    os.utime(path, (1e9, 1e9))
    first = HeaderCache()
    meta = first.read([path]).meta
    assert HeaderCache().read([path]).meta is meta
    assert len(reads) == 1
    del first, meta
    assert list(HeaderCache().read([path]).meta) == ["w"]
    assert len(reads) == 2


def test_a_file_that_was_just_written_is_read_by_each_since_a_change_within_one_tick_would_not_show(path: Path) -> None:
    just_now = time.time() + 60  # however slow this machine is
    os.utime(path, (just_now, just_now))
    first = HeaderCache()
    first.read([path])
    write_tensors(path, {"v": ("F32", [1], floats(2))})
    os.utime(path, (just_now, just_now))
    assert list(HeaderCache().read([path]).meta) == ["v"]


def test_a_cache_has_nothing_of_another_one_once_the_file_is_another(path: Path) -> None:
    os.utime(path, (1e9, 1e9))
    first = HeaderCache()
    first.read([path])
    write_tensors(path, {"other": ("F32", [1], floats(2))})
    assert list(HeaderCache().read([path]).meta) == ["other"]


@pytest.mark.parametrize("share", [True, False])
def test_a_file_that_is_not_there_is_not_overlooked_because_the_others_are_known(path: Path, share: bool) -> None:
    first = HeaderCache()
    first.read([path])
    with pytest.raises(CheckpointNotFoundError, match="gone"):
        (HeaderCache() if share else first).read([path, path.with_name("gone.safetensors")])
