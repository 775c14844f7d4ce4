# SPDX-License-Identifier: Apache-2.0
"""Columns of matrices: very many short ranges of one place, read in a tight loop."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.faults import Recorded, at_once, failing, short
from support.measure import nothing_left_open

from weight_readers import FileChangedError, TensorPart, TensorSlice, UnreadableFileError
from weight_readers_threaded import direct
from weight_readers_threaded.reader import ThreadedReader

ROWS, COLUMNS = 300, 40
PARTS: dict[str, TensorPart] = {
    "a": TensorSlice(dim=1, start=3, stop=20),
    "b": (TensorSlice(dim=0, start=7), TensorSlice(dim=1, start=-9)),
    "c": TensorSlice(dim=2, start=1, stop=2),
    "d": (TensorSlice(dim=0, start=1, stop=3), TensorSlice(dim=1, stop=70), TensorSlice(dim=2, stop=1)),
}
EXPECTED = {
    "a": lambda whole: whole[:, 3:20],
    "b": lambda whole: whole[7:, -9:],
    "c": lambda whole: whole[:, :, 1:2],
    "d": lambda whole: whole[1:3, :70, :1],
    "e": lambda whole: whole,
}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    with nothing_left_open(), at_once():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = torch.Generator().manual_seed(1)
    tensors = {
        "a": torch.randn(ROWS, COLUMNS, generator=made),
        "b": torch.randn(ROWS, COLUMNS, generator=made).bfloat16(),
        "c": torch.randn(4, 50, 6, generator=made),
        "d": torch.randn(4, 90, 3, generator=made),
        "e": torch.randn(11, generator=made),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def wanted(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: cut(file.get_tensor(name)) for name, cut in EXPECTED.items()}


OPTIONS: list[dict[str, Any]] = [
    {"num_threads": 1},
    {"num_threads": 3},
    {"num_threads": 3, "chunk_bytes": 50, "max_in_flight_bytes": 400},
    {"num_threads": 2, "direct_io": "auto"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("read", [None, short()], ids=["whole", "short"])
def test_parts_are_those_of_torch(
    path: Path, options: dict[str, Any], read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read is not None:
        monkeypatch.setattr(direct, "read", read)
    expected = wanted(path)
    found = dict(ThreadedReader(**options).iter_weights([path], slices=PARTS))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(value) for name, value in expected.items())
    filled = {name: torch.zeros_like(value, memory_format=torch.contiguous_format) for name, value in expected.items()}
    strided = {name: torch.zeros(*value.shape, 2, dtype=value.dtype)[..., 1] for name, value in expected.items()}
    for targets in (filled, strided):
        ThreadedReader(**options).read_into([path], targets, slices=PARTS)
        assert all(targets[name].equal(value) for name, value in expected.items())


def test_each_stripe_is_one_read_of_its_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(direct.read)
    monkeypatch.setattr(direct, "read", recorded)
    stats = []
    reader = ThreadedReader(num_threads=2)
    names = {"a"}.__contains__
    dict(reader.iter_weights([path], key_filter=names, slices={"a": PARTS["a"]}, on_progress=stats.append))
    begin = reader.read_meta([path])["a"].offset
    assert sorted(recorded.reads) == [("m.safetensors", begin + row * 160 + 12, 68) for row in range(ROWS)]
    assert (stats[-1].bytes_wanted, stats[-1].bytes_read) == (ROWS * 68, ROWS * 68)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_in_the_midst_names_tensor_and_targets(
    path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ThreadedReader(num_threads=threads)
    begin = reader.read_meta([path])["b"].offset + 150 * 80
    monkeypatch.setattr(direct, "read", failing(OSError(errno.EIO, "broken"), begin=begin))
    targets = {name: torch.zeros(wanted(path)[name].shape, dtype=wanted(path)[name].dtype) for name in "ab"}
    slices = {name: PARTS[name] for name in "ab"}
    with pytest.raises(UnreadableFileError, match="EIO") as caught:
        reader.read_into([path], targets, slices=slices)
    assert (caught.value.tensor, caught.value.written) == ("b", ("a", "b"))
    assert targets["a"].equal(wanted(path)["a"])


def test_an_error_is_raised_at_once_and_not_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(failing(OSError(errno.EIO, "broken")))
    monkeypatch.setattr(direct, "read", recorded)
    with pytest.raises(UnreadableFileError):
        dict(ThreadedReader(num_threads=1).iter_weights([path], slices=PARTS))
    assert len(recorded.reads) == 1


def test_a_file_that_is_cut_meanwhile_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, first = direct.read, threading.Lock()

    def cutting(file: Any, buffers: Any, offset: int) -> int:
        if first.acquire(blocking=False):
            with open(path, "r+b") as file_to_cut:
                file_to_cut.truncate(path.stat().st_size // 2)
        return read(file, buffers, offset)

    monkeypatch.setattr(direct, "read", cutting)
    with pytest.raises(FileChangedError):
        dict(ThreadedReader().iter_weights([path], slices=PARTS))


def test_after_an_error_the_other_thread_ends_before_its_next_stripe(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has 64 of them before it, a fiftieth of a second each."""
    begin = ThreadedReader().read_meta([path])["a"].offset + 5 * 160
    read = failing(OSError(errno.EIO, "broken"), begin=begin, end=begin + 160)

    def slow(file: Any, buffers: Any, offset: int) -> int:
        threading.Event().wait(0.02)
        return read(file, buffers, offset)

    recorded = Recorded(slow)
    monkeypatch.setattr(direct, "read", recorded)
    weights = ThreadedReader(num_threads=2).iter_weights(
        [path], key_filter={"a"}.__contains__, slices={"a": PARTS["a"]}
    )
    with pytest.raises(UnreadableFileError):
        next(weights)
    assert len(recorded.reads) < 50
