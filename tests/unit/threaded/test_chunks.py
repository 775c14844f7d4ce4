# SPDX-License-Identifier: Apache-2.0
"""How much one request asks for, where the caller does not say: by the requests that are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.faults import Recorded
from support.files import write_tensors
from support.measure import nothing_left_open
from support.tensors import bits, noise, write_sparse

from weight_readers import TensorSlice
from weight_readers_threaded import direct
from weight_readers_threaded.reader import ThreadedReader

MIB = 1 << 20
SIZE = 192 * MIB
TENSORS = 4


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    with nothing_left_open():
        yield


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded(direct.read)
    monkeypatch.setattr(direct, "read", recorded)
    return recorded


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of 384 MiB, sparse: a 32nd of them is 24 MiB."""
    folder = tmp_path_factory.mktemp("chunks")
    paths = [folder / f"{shard}.safetensors" for shard in "ab"]
    for path in paths:
        write_sparse(path, {f"{path.stem}{number}": SIZE // 2 for number in range(TENSORS)})
    return paths


def targets() -> dict[str, torch.Tensor]:
    return {f"{shard}{number}": torch.ones(SIZE // 2).byte() for shard in "ab" for number in range(TENSORS)}


def longest(recorded: Recorded) -> int:
    return max(length for _, _, length in recorded.reads)


def test_targets_are_filled_by_requests_of_a_32nd_of_all(paths: list[Path], recorded: Recorded) -> None:
    filled = targets()
    ThreadedReader(num_threads=2).read_into(paths, filled)
    assert longest(recorded) == 24 * MIB
    assert sum(length for _, _, length in recorded.reads) == 4 * SIZE
    assert not any(values.any() for values in filled.values())


def test_less_is_asked_for_8_mib_at_a_time(paths: list[Path], recorded: Recorded) -> None:
    ThreadedReader(num_threads=2).read_into(paths[:1], {"a0": torch.ones(SIZE // 2).byte()})
    assert longest(recorded) == 8 * MIB


@pytest.mark.parametrize("how", ["a part", "staged", "direct", "tensors"])
def test_what_needs_memory_or_exact_pages_is_asked_for_8_mib_at_a_time(
    paths: list[Path], recorded: Recorded, how: str
) -> None:
    reader = ThreadedReader(num_threads=2, direct_io="on" if how == "direct" else "off")
    if how == "tensors":
        for _, values in reader.iter_weights(paths):
            del values
    else:
        filled = targets()
        slices = {"a0": TensorSlice(dim=0, stop=SIZE // 4)} if how == "a part" else None
        if slices is not None:
            filled["a0"] = filled["a0"][: SIZE // 4]
        if how == "staged":
            filled["b1"] = torch.ones(SIZE).byte()[::2]
        reader.read_into(paths, filled, slices=slices)
    assert longest(recorded) == 8 * MIB


def test_what_the_caller_says_counts(paths: list[Path], recorded: Recorded) -> None:
    ThreadedReader(num_threads=2, chunk_bytes=2 * MIB).read_into(paths, targets())
    assert longest(recorded) == 2 * MIB


def test_long_requests_put_every_byte_in_its_place(tmp_path: Path, recorded: Recorded) -> None:
    """Tensors that end anywhere, so that requests are joined and cut."""
    data = noise(3 * MIB) * 120
    sizes = [30 * MIB + 1, 3, 90 * MIB - 7, *[MIB + number for number in range(60)], 140 * MIB + 5]
    named, begin = {}, 0
    for number, size in enumerate(sizes):
        named[f"t{number:02}"] = ("U8", [size], data[begin % MIB + number : begin % MIB + number + size])
        begin += size
    path = write_tensors(tmp_path / "m.safetensors", named)
    filled = {name: torch.ones(len(content)).byte() for name, (_, _, content) in named.items()}
    ThreadedReader(num_threads=3).read_into([path], filled)
    assert longest(recorded) > 8 * MIB
    assert [name for name, (_, _, content) in named.items() if bits(filled[name]) != content] == []
