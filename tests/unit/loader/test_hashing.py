# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib

import pytest
import torch

from weight_readers import FileMeta, TensorMeta
from weight_readers_loader import hashing
from weight_readers_loader.hashing import FileHash, Piece, memory_of, pieces_of

CONTENT = bytes(range(100))


def file(nbytes: int) -> FileMeta:
    return FileMeta(path="f", format="pt", nbytes=nbytes, header_bytes=0)


def meta(name: str, begin: int, end: int) -> TensorMeta:
    return TensorMeta(
        name=name,
        dtype="uint8",
        source_dtype="U8",
        shape=(end - begin,),
        stored_shape=(end - begin,),
        nbytes=end - begin,
        file="f",
        offset=begin,
    )


def tensor(begin: int, end: int) -> torch.Tensor:
    return torch.tensor(list(CONTENT[begin:end]), dtype=torch.uint8)


def read_at(begin: int, end: int) -> bytes:
    return CONTENT[begin:end]


def never() -> bool:
    return False


@pytest.mark.parametrize(
    ("tensors", "pieces"),
    [
        ([], [Piece(0, 20)]),
        ([("a", 0, 20)], [Piece(0, 20, "a")]),
        ([("b", 12, 20), ("a", 4, 8)], [Piece(0, 4), Piece(4, 8, "a"), Piece(8, 12), Piece(12, 20, "b")]),
        ([("a", 4, 8), ("none", 8, 8), ("b", 8, 9)], [Piece(0, 4), Piece(4, 8, "a"), Piece(8, 9, "b"), Piece(9, 20)]),
        ([("tied", 4, 8), ("again", 4, 8)], [Piece(0, 4), Piece(4, 8, "tied"), Piece(8, 20)]),
        ([("whole", 4, 16), ("part", 8, 12)], [Piece(0, 4), Piece(4, 16, "whole"), Piece(16, 20)]),
    ],
)
def test_pieces_are_the_whole_file_once_and_in_order(tensors: list[tuple[str, int, int]], pieces: list[Piece]) -> None:
    assert pieces == pieces_of(file(20), [meta(*each) for each in tensors])


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_the_digest_is_that_of_the_file_in_whatever_order_tensors_come(
    order: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "CHUNK_BYTES", chunk)
    places = {"a": (10, 40), "b": (50, 90)}
    found = FileHash(pieces_of(file(100), [meta(n, *p) for n, p in places.items()]), read_at, "sha256")
    if found.begin():
        list(found.advance(never))
    for name in order:
        assert found.hexdigest() is None
        if found.give(name, tensor(*places[name])):
            list(found.advance(never))
    assert found.hexdigest() == hashlib.sha256(CONTENT).hexdigest()
    assert found.bytes_read == 30


def test_a_tensor_that_cannot_be_hashed_as_it_came_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FileHash([Piece(0, 100, "a")], read_at, "sha512")
    assert not found.begin()
    assert found.give("a", None)
    assert list(found.advance(never)) == []
    assert found.hexdigest() == hashlib.sha512(CONTENT).hexdigest()
    assert found.bytes_read == 100


def test_what_was_stopped_does_no_more() -> None:
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return True

    found = FileHash([Piece(0, 100)], read_at, "sha256")
    assert found.begin()
    assert list(found.advance(stopped)) == []
    assert (found.bytes_read, found.hexdigest(), len(asked)) == (0, None, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float8_e4m3fn])
def test_the_memory_of_a_tensor_is_seen_without_a_copy(dtype: torch.dtype) -> None:
    held = torch.ones(3, 5).to(dtype)
    seen = memory_of(held)
    assert bytes(seen) == bytes(held.view(torch.uint8).reshape(-1).tolist())
    held.zero_()
    assert not any(seen)
