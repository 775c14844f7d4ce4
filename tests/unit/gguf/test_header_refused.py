# SPDX-License-Identifier: Apache-2.0
"""Headers that are wrong: each fault has its own error, which names the file and what was found there."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from unit.gguf.gguf_bytes import array, front, gguf_bytes, info, padded, pair, raw_pair, text, write_gguf

from weight_readers.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointProblems,
    DuplicateTensorError,
    EmptyFileError,
    ForeignContentError,
    HeaderError,
    LfsPointerError,
    ShapeError,
    TensorLayoutError,
    TruncatedFileError,
    UnreadableFileError,
)
from weight_readers_gguf.header import read_header, scan_header
from weight_readers_gguf.header._limits import MAX_ITEMS, MAX_PAIRS, MAX_PROBLEMS, MAX_TENSORS

HUGE = [2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


def refusal(tmp_path: Path, content: bytes) -> CheckpointError:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    return caught.value


def one_tensor(*dims: int, type_id: int = 0, offset: int = 0, data: bytes = bytes(4096)) -> bytes:
    """A file of one tensor, its dimensions in the order of the file."""
    return padded(front(1, 0) + info("t", dims, type_id, offset)) + data


# What is no GGUF file.


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"", EmptyFileError, "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 99\n", LfsPointerError, "sha256:ab of 99"),
        (b"<!DOCTYPE html><html>", ForeignContentError, "an HTML page"),
        (b"\n <html><body>", ForeignContentError, "an HTML page"),
        (b"<?xml version='1.0'?><Error/>", ForeignContentError, "an XML document"),
        (b'{"error": "not found"}', ForeignContentError, "JSON text"),
        (struct.pack("<Q", 12) + b'{"a":{}}    ', ForeignContentError, "a safetensors file"),
        (b"PK\x03\x04" + bytes(30), ForeignContentError, "zip"),
        (b"\x80\x02}q\x00.", ForeignContentError, "pickle"),
        (b"lmgg" + bytes(30), ForeignContentError, "before GGUF"),
        (b"\x1f\x8b\x08", ForeignContentError, "gzip"),
        (bytes(5000), ForeignContentError, "zero bytes"),
        (b"some text", ForeignContentError, "the content is text"),
        (b"GGUf" + bytes(60), ForeignContentError, "nothing that is known"),
    ],
)
def test_another_content_is_named(tmp_path: Path, content: bytes, kind: type[CheckpointError], said: str) -> None:
    error = refusal(tmp_path, content)
    assert (kind, True) == (type(error), said in error.what)


def test_a_folder_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="a folder, not a file"):
        read_header(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(UnreadableFileError, match="a named pipe, not a file"):
        read_header(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["none.gguf", "nowhere/m.gguf", "a\0b.gguf"])
def test_a_path_where_nothing_is_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointNotFoundError):
        read_header(tmp_path / name)


# Version and byte order.


@pytest.mark.parametrize("version", [0, 1, 4, 255, 65535])
def test_a_version_that_is_not_read_is_named(tmp_path: Path, version: int) -> None:
    error = refusal(tmp_path, front(0, 0, version=version))
    assert (HeaderError, f"GGUF version {version} is not read here") == (type(error), error.what)


@pytest.mark.parametrize("version", [1, 2, 3, 255])
def test_the_opposite_byte_order_is_named_before_the_version(tmp_path: Path, version: int) -> None:
    error = refusal(tmp_path, gguf_bytes({"a": (0, (2,), bytes(8))}, {"k": "v"}, version=version, order=">"))
    assert (HeaderError, "the file has the opposite byte order") == (type(error), error.what)
    assert error.found == f"big endian, version {version}"


# Lengths and counts.


@pytest.mark.parametrize("size", range(1, 24))
def test_a_file_cut_before_its_counts_is_cut(tmp_path: Path, size: int) -> None:
    error = refusal(tmp_path, front(0, 0)[:size])
    assert (TruncatedFileError, f"{size} bytes") == (type(error), error.found)


def test_a_file_cut_anywhere_in_its_header_is_cut(tmp_path: Path) -> None:
    metadata = {"k": 1, "s": "text", "l": ["a", "b"], "n": [[1], [2]], "f": [0.5]}
    whole = gguf_bytes({"a.weight": (0, (2, 4), bytes(32)), "b": (2, (32,), bytes(18))}, metadata)
    path = tmp_path / "m.gguf"
    for size in range(4, len(whole) - 32 + 18):
        path.write_bytes(whole[:size])
        with pytest.raises(TruncatedFileError):
            read_header(path)


@pytest.mark.parametrize("count", [MAX_TENSORS + 1, *HUGE])
@pytest.mark.parametrize("what", ["tensors", "metadata keys"])
def test_a_count_that_no_file_has_is_refused(tmp_path: Path, count: int, what: str) -> None:
    assert MAX_TENSORS == MAX_PAIRS
    error = refusal(tmp_path, front(*((count, 0) if what == "tensors" else (0, count))) + bytes(64))
    assert (HeaderError, count, True) == (type(error), error.found, f"{count} {what}" in error.what)


@pytest.mark.parametrize("counts", [(3, 0), (0, 5), (MAX_TENSORS, MAX_PAIRS)])
def test_a_count_that_the_file_has_no_room_for_is_refused(tmp_path: Path, counts: tuple[int, int]) -> None:
    assert type(refusal(tmp_path, front(*counts) + bytes(64))) is TruncatedFileError


HOSTILE = {
    "a key": lambda n: front(0, 1) + text("k" * 40, length=n),
    "a string": lambda n: front(0, 1) + raw_pair("k", 8, text("v" * 40, length=n)),
    "a tensor's name": lambda n: front(1, 0) + text("k" * 40, length=n),
    "an array of numbers": lambda n: front(0, 1) + raw_pair("k", 9, array(10, n, bytes(64))),
    "an array of bytes": lambda n: front(0, 1) + raw_pair("k", 9, array(0, n, bytes(64))),
    "an array of strings": lambda n: front(0, 1) + raw_pair("k", 9, array(8, n, bytes(64))),
    "an array of arrays": lambda n: front(0, 1) + raw_pair("k", 9, array(9, n, array(0, 0) * 5)),
    "an array within an array": lambda n: front(0, 1) + raw_pair("k", 9, array(9, 1, array(4, n, bytes(64)))),
    "the first string of an array": lambda n: front(0, 1) + raw_pair("k", 9, array(8, 2, text("a" * 40, length=n))),
    "the last string of an array": lambda n: (
        front(0, 1) + raw_pair("k", 9, array(8, 2, text("a" * 40) + text("b", length=n)))
    ),
}


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize("where", HOSTILE)
def test_a_length_beyond_the_end_of_the_file_is_refused(tmp_path: Path, where: str, length: int) -> None:
    error = refusal(tmp_path, HOSTILE[where](length))
    assert isinstance(error, (TruncatedFileError, HeaderError))
    assert "metadata key" in error.what or "tensor 1 of 1" in error.what


def test_an_endless_array_of_a_tiny_file_is_refused(tmp_path: Path) -> None:
    # ggml-org/llama.cpp#27188
    content = front(0, 1) + raw_pair("k", 9, array(0, 2**60))
    assert (49, TruncatedFileError) == (len(content), type(refusal(tmp_path, content)))


def test_more_strings_than_any_vocabulary_has_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(front(0, 1) + raw_pair("k", 9, array(8, MAX_ITEMS + 1)))
    os.truncate(path, 8 * MAX_ITEMS + 4096)
    with pytest.raises(HeaderError, match="too many items in arrays in the value of metadata key 'k'"):
        read_header(path)


@pytest.mark.parametrize("value", [raw_pair("k", 9, array(10, 1 << 28)), raw_pair("k", 8, struct.pack("<Q", 1 << 31))])
def test_a_header_longer_than_a_gibibyte_is_refused(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(front(0, 1) + value)
    os.truncate(path, 1 << 32)
    with pytest.raises(HeaderError, match="too many bytes in the value of metadata key 'k'"):
        read_header(path)


def test_a_name_longer_than_64_kib_is_refused(tmp_path: Path) -> None:
    assert "a name of 65536 bytes" in refusal(tmp_path, gguf_bytes({"n" * 65536: (0, (1,), bytes(4))})).what


@pytest.mark.parametrize("depth", [5, 100, 5000])
def test_arrays_nested_deeper_than_4_are_refused(tmp_path: Path, depth: int) -> None:
    error = refusal(tmp_path, front(0, 1) + raw_pair("k", 9, array(9, 1) * (depth - 1) + array(0, 0)))
    assert (HeaderError, True) == (type(error), "arrays within arrays" in error.what)


def test_arrays_nested_4_deep_are_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"k": [[[[1]]]]})
    assert read_header(path).metadata["k"] == [[[[1]]]]


@pytest.mark.parametrize("type_id", [13, 2**32 - 1])
def test_an_unknown_type_of_a_value_is_named_with_its_key(tmp_path: Path, type_id: int) -> None:
    for content in (raw_pair("some.key", type_id, bytes(64)), raw_pair("some.key", 9, array(type_id, 1, bytes(64)))):
        error = refusal(tmp_path, front(0, 1) + content)
        assert (HeaderError, str(type_id), True) == (type(error), error.found, "'some.key'" in error.what)


# Names.


@pytest.mark.parametrize(
    ("name", "said"),
    [(b"", "is empty"), (b"a\0b", "a NUL"), (b"\xffweight", "no UTF-8"), (b"\xed\xa0\x80", "no UTF-8")],
)
@pytest.mark.parametrize("what", ["tensor", "key"])
def test_a_name_that_cannot_be_shown_is_refused(tmp_path: Path, name: bytes, said: str, what: str) -> None:
    tensor = padded(front(1, 0) + info(name, (1,), 0, 0)) + bytes(32)
    error = refusal(tmp_path, tensor if what == "tensor" else front(0, 1) + pair(name, 1))
    assert (HeaderError, True) == (type(error), said in error.what)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, padded(front(2, 0) + info("t", (1,), 0, 0) + info("t", (1,), 0, 32)) + bytes(64))
    assert (DuplicateTensorError, "t") == (type(error), error.tensor)


def test_a_key_twice_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, front(0, 2) + pair("key", 1) + pair("key", 2))
    assert (HeaderError, True) == (type(error), "key 'key' twice" in error.what)


# Alignment.


@pytest.mark.parametrize(
    "value",
    [0, 3, 24, 2**21, 2**31, ("UINT64", 32), ("INT32", 32), ("INT32", -32), ("UINT8", 32), "32", 32.0, True],
)
def test_an_alignment_that_is_none_is_refused_with_its_value_and_type(tmp_path: Path, value: object) -> None:
    error = refusal(tmp_path, padded(front(0, 1) + pair("general.alignment", value)))
    plain = value[1] if isinstance(value, tuple) else value
    assert (HeaderError, True) == (type(error), str(error.found).startswith(f"{plain}, as "))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([32], "ARRAY[UINT32]"),
        (("UINT8", [32] * 1000), "ARRAY[UINT8]"),
        ("ü" * 81, f"{'ü' * 80}... (162 bytes), as STRING"),
        ("x" * 200_000, f"{'x' * 80}... (200000 bytes), as STRING"),
    ],
)
def test_no_more_than_80_characters_of_a_value_are_shown(tmp_path: Path, value: object, found: str) -> None:
    assert found == refusal(tmp_path, padded(front(0, 1) + pair("general.alignment", value))).found


# Shapes and places.


@pytest.mark.parametrize("rank", [9, 2**31, 2**32 - 1])
def test_more_than_8_dimensions_are_refused(tmp_path: Path, rank: int) -> None:
    error = refusal(tmp_path, padded(front(1, 0) + info("t", [1] * 9, 0, 0, rank=rank)) + bytes(64))
    assert (ShapeError, "t", rank) == (type(error), error.tensor, error.found)


@pytest.mark.parametrize(
    "dims", [(2**60,), (2**63,), (2**32, 2**31), (2**32, 2**32), (2**16,) * 4, (0, 2**60), (2**64 - 1, 2**64 - 1, 0)]
)
def test_shapes_that_no_tensor_can_have_are_refused_even_without_elements(
    tmp_path: Path, dims: tuple[int, ...]
) -> None:
    error = refusal(tmp_path, one_tensor(*dims, type_id=24))
    assert ShapeError in {type(each) for each in error.problems}


def test_a_shape_that_a_tensor_may_have_and_the_file_does_not_hold_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, one_tensor(2**60 - 1, type_id=28))
    assert (TruncatedFileError, f"{2**63 - 8 + 64} bytes") == (type(error), error.expected)


@pytest.mark.parametrize(("inner", "type_id", "name"), [(31, 2, "Q4_0"), (33, 8, "Q8_0"), (128, 12, "Q4_K")])
def test_a_stored_row_of_no_whole_blocks_is_refused(tmp_path: Path, inner: int, type_id: int, name: str) -> None:
    error = refusal(tmp_path, one_tensor(inner, 64, type_id=type_id))
    assert (ShapeError, True, inner) == (type(error), name in error.what, error.found)


@pytest.mark.parametrize("offset", [1, 16, 33])
def test_an_unaligned_offset_is_refused(tmp_path: Path, offset: int) -> None:
    error = refusal(tmp_path, one_tensor(8, offset=offset))
    assert (TensorLayoutError, offset, "t") == (type(error), error.found, error.tensor)


@pytest.mark.parametrize("places", [{"a": 0, "b": 0}, {"a": 0, "b": 32}, {"a": 32, "b": 0}])
def test_an_overlap_is_refused_naming_both_tensors(tmp_path: Path, places: dict[str, int]) -> None:
    tensors = {name: (0, (16,), bytes(64)) for name in places}
    error = refusal(tmp_path, gguf_bytes(tensors, offsets=places))
    assert (TensorLayoutError, True) == (type(error), {error.tensor, error.what.split("'")[1]} == {"a", "b"})


def test_a_tensor_within_another_does_not_hide_a_third(tmp_path: Path) -> None:
    tensors = {"a": (0, (64,), bytes(256)), "b": (0, (8,), bytes(32)), "c": (0, (8,), bytes(32))}
    error = refusal(tmp_path, gguf_bytes(tensors, offsets={"a": 0, "b": 32, "c": 128}))
    assert [("b", TensorLayoutError), ("c", TensorLayoutError)] == [(e.tensor, type(e)) for e in error.problems]


@pytest.mark.parametrize("offset", [4096, 2**40, 2**63, 2**64 - 32])
def test_an_offset_beyond_the_end_of_the_file_is_refused(tmp_path: Path, offset: int) -> None:
    assert (TruncatedFileError, "t") == (type(e := refusal(tmp_path, one_tensor(8, offset=offset))), e.tensor)


def test_a_cut_file_is_told_with_its_sizes_and_the_first_tensor_that_is_not_whole(tmp_path: Path) -> None:
    tensors = {name: (0, (8,), bytes(32)) for name in "abc"}
    whole = gguf_bytes(tensors)
    error = refusal(tmp_path, whole[:-33])
    assert (TruncatedFileError, "b") == (type(error), error.tensor)
    assert (f"{len(whole)} bytes", f"{len(whole) - 33} bytes") == (error.expected, error.found)
    end = len(whole) - 32
    assert f"it has {len(whole) - 33} bytes and its header needs {len(whole)} (missing bytes: 33; " in error.what
    assert f"incomplete tensors: 2, the first at bytes {end - 32}..{end})" in error.what


def test_a_cut_before_the_data_of_an_unknown_type_is_found(tmp_path: Path) -> None:
    error = refusal(tmp_path, one_tensor(8, type_id=99, data=b""))
    assert (TruncatedFileError, "t") == (type(error), error.tensor)


# Several at once.


def test_all_that_is_wrong_is_told_at_once_beside_what_could_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    entries = info("a", (2**63,), 0, 0) + info("b", (33,), 2, 0) + info("c", (8,), 0, 2**20 + 1)
    path.write_bytes(padded(front(3, 2) + pair("k", 1) + pair("k", 2) + entries))
    header, problems = scan_header(path)
    assert [HeaderError, ShapeError, ShapeError] == [type(each) for each in problems[:3]]
    assert {TensorLayoutError, TruncatedFileError} <= {type(each) for each in problems[3:]}
    assert (dict(header.metadata), [each.name for each in header.tensors]) == ({"k": 1}, ["a", "b", "c"])
    with pytest.raises(CheckpointProblems):
        read_header(path)


def test_a_flood_of_problems_is_cut(tmp_path: Path) -> None:
    count = 5 * MAX_PROBLEMS
    for content in (
        front(count, 0) + info("t", (1,), 0, 0) * count,
        front(count, 0) + b"".join(info(f"{i}", (33,), 2, 0) for i in range(count)),
        front(count, 0) + b"".join(info(f"{i}", (1,), 0, 32 * i + 1) for i in range(count)),
        front(0, count) + pair("k", 1) * count,
        front(0, count) + pair(b"\xff", 1) * count,
    ):
        error = refusal(tmp_path, padded(content) + bytes(64 * count))
        assert MAX_PROBLEMS <= len(error.problems) <= MAX_PROBLEMS + 2
        assert "more than 99 problems" in error.problems[-1].what
