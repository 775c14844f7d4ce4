# SPDX-License-Identifier: Apache-2.0
"""Every page of a tensor in memory before it is handed on: by what the kernel says of the mapping, or of the cache."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.measure import PAGE, cached_pages, evict, nothing_left_open, smaps
from support.tensors import noise

from weight_readers import UnreadableFileError
from weight_readers_loader import touching
from weight_readers_loader.environment.limits import available_cpus
from weight_readers_loader.streams import touched
from weight_readers_loader.touching import PIECE_BYTES, Toucher, thread_count

MIB = 1 << 20
SIZE = 4 * PIECE_BYTES + PAGE


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Whatever happens, no thread outlives a test."""
    with nothing_left_open():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes((noise(MIB) * (SIZE // MIB + 1))[:SIZE])
    evict(path)
    return path


def mapped(path: Path) -> torch.Tensor:
    """``uint8 [bytes]``, by torch itself: a private mapping, none of it read."""
    return torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)


@pytest.fixture(params=["populated", "sampled"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """This one, and one before Linux 5.14, which does not know the advice: by its number nothing is known here."""
    if request.param == "sampled":
        monkeypatch.setattr(touching, "_MADV_POPULATE_READ", 9999)
    return str(request.param)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_all_pages_of_a_view_are_in_this_process_and_none_is_copied(path: Path, threads: int) -> None:
    view = mapped(path)
    assert smaps(path, "Rss") == 0
    with Toucher(threads) as toucher:
        toucher.touch(view)
    assert (smaps(path, "Rss"), smaps(path, "Anonymous")) == (SIZE, 0)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("begin", "end"), [(5, 6), (PAGE - 1, PAGE + 1), (PAGE, SIZE - PAGE), (PAGE + 1, SIZE)])
def test_a_part_is_touched_from_its_first_page_to_its_last(path: Path, begin: int, end: int) -> None:
    view = mapped(path)[begin:end]
    with Toucher(2) as toucher:
        toucher.touch(view)
    there = cached_pages(path)
    assert there[begin // PAGE]
    assert there[(end - 1) // PAGE]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("left", [0, PAGE, SIZE - PAGE])
def test_a_file_that_was_cut_under_its_view_is_an_error_and_not_the_end(path: Path, left: int, threads: int) -> None:
    """To touch what is not there is SIGBUS. Without an end of the test run this is seen by the kernel's answer."""
    view = mapped(path)
    os.truncate(path, left)
    with Toucher(threads) as toucher, pytest.raises(OSError, match=os.strerror(errno.EFAULT)) as caught:
        toucher.touch(view)
    assert caught.value.errno == errno.EFAULT


def test_the_error_names_tensor_and_file_and_closes_the_stream(path: Path) -> None:
    view = mapped(path)
    os.truncate(path, PAGE)
    closed = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        try:
            yield "first", torch.ones(3)
            yield "cut", view
            yield "third", torch.ones(3)
        finally:
            closed.append(True)

    stream = touched(weights(), {"first": "other", "cut": str(path)}.__getitem__)
    assert next(stream)[0] == "first"
    with pytest.raises(UnreadableFileError) as caught:
        next(stream)
    assert (caught.value.path, caught.value.tensor, caught.value.found) == (str(path), "cut", os.strerror(errno.EFAULT))
    assert closed


def test_an_error_outside_of_touching_is_left_as_it_is() -> None:
    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        raise OSError(errno.EIO, "of the reader")
        yield

    with pytest.raises(OSError, match="of the reader"):
        next(touched(weights(), str))


def test_ctrl_c_ends_the_threads_and_is_heard(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    populate_all = touching._populate_all

    def interrupted(pieces: touching.deque[touching.Piece]) -> int:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return populate_all(pieces)

    monkeypatch.setattr(touching, "_populate_all", interrupted)
    with pytest.raises(KeyboardInterrupt), Toucher(4) as toucher:
        toucher.touch(mapped(path))


def test_ctrl_c_while_a_thread_begins_is_heard(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own ``Thread.start`` then ends with a RuntimeError of its condition's lock."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Toucher(4) as toucher:
        toucher.touch(mapped(path))


def test_where_no_thread_can_be_had_one_does_the_work(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    view = mapped(path)
    with Toucher(4) as toucher:
        toucher.touch(view)
    assert smaps(path, "Rss") == SIZE
    assert view.shape == (SIZE,)


def test_a_thread_that_fails_leaves_its_pages_to_the_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    populate_all = touching._populate_all

    def failing(pieces: touching.deque[touching.Piece]) -> int:
        if threading.current_thread() is not threading.main_thread():
            pieces.popleft()
            raise MemoryError
        return populate_all(pieces)

    monkeypatch.setattr(touching, "_populate_all", failing)
    view = mapped(path)
    with Toucher(2) as toucher:
        toucher.touch(view)
        toucher.touch(view)
    assert smaps(path, "Rss") == SIZE
    assert view.shape == (SIZE,)


def test_small_tensors_need_no_thread() -> None:
    before = threading.active_count()
    with Toucher(4) as toucher:
        toucher.touch(torch.ones(PIECE_BYTES // 8))
        assert threading.active_count() == before
        toucher.touch(torch.ones(PIECE_BYTES))
        assert before < threading.active_count() <= before + 4


def test_ranks_of_a_machine_share_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert thread_count() == min(4, available_cpus())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(4 * available_cpus()))
    assert thread_count() == 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(()),
        torch.ones(0),
        torch.ones(0, 3).t(),
        torch.ones(4, 4).t(),
        torch.ones(5000),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, device="meta"),
        torch.tensor([True]),
        torch.tensor([[True, False]]).t(),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
@pytest.mark.usefixtures("kernel")
def test_touching_changes_nothing(tensor: torch.Tensor) -> None:
    assert next(touched([("a", tensor)], str))[1] is tensor
