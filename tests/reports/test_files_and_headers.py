# SPDX-License-Identifier: Apache-2.0
"""Public reports about broken files and odd headers: one test or group per report, named by its number."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import entry, floats, write_safetensors, write_sharded, write_tensors

from weight_readers.errors import (
    CheckpointError,
    CheckpointProblems,
    DuplicateTensorError,
    EmptyFileError,
    ForeignContentError,
    HeaderError,
    LfsPointerError,
    ShapeError,
    TensorLayoutError,
    TrailingBytesError,
    TruncatedFileError,
    UnknownDtypeError,
)
from weight_readers_safetensors import DTYPES, read_header, read_headers, scan_header, torch_dtype

OID = "0123456789abcdef" * 4
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize 4974351112\n".encode()
SOUND = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def refused(path: Path, kind: type[CheckpointError]) -> str:
    """The message of the refusal, which must be of exactly this kind and name the file."""
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert type(caught.value) is kind, caught.value
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def refused_header(
    tmp_path: Path, header: Any, kind: type[CheckpointError] = HeaderError, body: bytes = bytes(4)
) -> str:
    return refused(write_safetensors(tmp_path / "model.safetensors", header, body), kind)


@pytest.mark.parametrize("content", [POINTER, POINTER.replace(b"\n", b"\r\n")], ids=["LF", "CRLF"])
def test_b001_a_git_lfs_pointer_is_named_with_oid_and_size(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    message = refused(tmp_path / "model.safetensors", LfsPointerError)
    assert "git-lfs pointer" in message
    assert OID in message
    assert "4974351112 bytes" in message
    assert "git lfs pull" in message


def test_b001_every_pointer_among_the_shards_is_listed(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path, 3)
    shards[1].write_bytes(POINTER)
    with pytest.raises(LfsPointerError, match="model-00002-of-00003"):
        read_headers(shards)
    shards[2].write_bytes(POINTER)
    with pytest.raises(CheckpointProblems) as caught:
        read_headers(shards)
    assert [each.path for each in caught.value.problems] == [str(shards[1]), str(shards[2])]


def test_b001_a_tensor_named_like_a_pointer_is_a_tensor(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "model.safetensors", {"version https://git-lfs": ("F32", [1], floats(1))})
    assert list(read_header(path).tensors) == ["version https://git-lfs"]


@pytest.fixture
def two_tensors(tmp_path: Path) -> Path:
    path = tmp_path / "model-00002-of-00002.safetensors"
    return write_tensors(path, {"a": ("F32", [2], floats(1, 2)), "b": ("F32", [2], floats(3, 4))})


@pytest.mark.parametrize(("lost", "incomplete"), [(1, 1), (8, 1), (9, 2), (16, 2)])
def test_b004_a_cut_body_gives_expected_found_and_missing_bytes(two_tensors: Path, lost: int, incomplete: int) -> None:
    whole = two_tensors.read_bytes()
    two_tensors.write_bytes(whole[:-lost])
    message = refused(two_tensors, TruncatedFileError)
    assert f"missing bytes: {lost}; incomplete tensors: {incomplete}" in message
    assert f"expected {len(whole)} bytes, found {len(whole) - lost} bytes" in message


@pytest.mark.parametrize("kept", [8, 9, 30, 80])
def test_b004_a_cut_header_is_a_cut_file(two_tensors: Path, kept: int) -> None:
    whole = two_tensors.read_bytes()
    two_tensors.write_bytes(whole[:kept])
    message = refused(two_tensors, TruncatedFileError)
    assert "cut inside its header" in message
    assert f"expected at least {len(whole) - 16} bytes, found {kept} bytes" in message


def test_b004_a_cut_between_the_bytes_of_one_character_is_a_cut_file(tmp_path: Path) -> None:
    header = json.dumps({"ä": SOUND}, ensure_ascii=False).encode()
    path = write_safetensors(tmp_path / "model.safetensors", header, floats(1))
    path.write_bytes(path.read_bytes()[:11])
    assert "cut inside its header" in refused(path, TruncatedFileError)


def test_b004_a_cut_header_still_lists_what_it_has(two_tensors: Path) -> None:
    two_tensors.write_bytes(two_tensors.read_bytes()[:-30])
    found, (problem,) = scan_header(two_tensors)
    assert isinstance(problem, TruncatedFileError)
    assert list(found.tensors) == ["a"]


@pytest.mark.parametrize("kept", range(1, 8))
def test_b006_a_file_too_short_for_the_length_field_is_a_cut_file(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((b"\x40" + bytes(7))[:kept])
    message = refused(path, TruncatedFileError)
    assert f"it has {kept} of the 8 bytes" in message
    assert f"found {kept} bytes" in message


def test_b006_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path, 2)
    shards[1].write_bytes(b"")
    assert "empty file (0 bytes)" in refused(shards[1], EmptyFileError)


@pytest.mark.skip(reason="digests are checked by the loader, against its manifests")
def test_b009_a_flipped_bit_is_found_by_its_digest() -> None:
    raise NotImplementedError


def pt_zip(path: Path) -> None:
    torch.save({"a": torch.ones(2)}, path)


def pt_legacy(path: Path) -> None:
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)


def gguf(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))


def plain_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model.safetensors", "x")


@pytest.mark.parametrize(
    ("write", "content"),
    [(pt_zip, "a torch checkpoint"), (pt_legacy, "a pickle"), (gguf, "a GGUF file"), (plain_zip, "a zip archive")],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin", ".gguf"])
def test_b012_content_and_name_that_disagree_are_both_named(
    write: Any, content: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"model{suffix}"
    write(path)
    message = refused(path, ForeignContentError)
    assert f"the name says {suffix}, and the content is {content}" in message
    assert "expected safetensors" in message


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin", ".gguf", ""])
def test_b012_a_safetensors_file_of_any_name_is_one(suffix: str, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / f"model{suffix}", {"a": ("F32", [1], floats(1))})
    assert list(read_header(path).tensors) == ["a"]


def test_b012_a_pickle_named_safetensors_is_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "marker",)

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    refused(path, ForeignContentError)
    assert not (tmp_path / "marker").exists()


def changed(**fields: Any) -> dict[str, Any]:
    return {"a": {**SOUND, **fields}}


B017 = {
    "a number for an entry": (b'{"a":1}', "the entry is the number 1, not an object"),
    "a list for an entry": (b'{"a":["F32",[1],[0,4]]}', "the entry is a list, not an object"),
    "null for an entry": (b'{"a":null}', "the entry is null, not an object"),
    "only a dtype": (b'{"a":{"dtype":"F32"}}', "the entry has no shape and no data_offsets"),
    "no dtype": (b'{"a":{"shape":[1],"data_offsets":[0,4]}}', "the entry has no dtype"),
    "bad UTF-8 in a name": (b'{"a\xff":{}}', "not UTF-8 (byte 0xff), at byte 11"),
    "bad UTF-8 far on": (b'{"a":' + json.dumps(SOUND).encode() + b',"\xc3(":1}', "not UTF-8 (byte 0xc3)"),
    "a list on top": (b"[]", "the top level of the header is a list"),
    "a string on top": (b'"a"', "the top level of the header is a single value"),
    "only a brace": (b"{", "ends before its object is closed, at byte 9"),
    "an unfinished string": (b'{"a', "ends before its object is closed, at byte 11"),
    "an unfinished entry": (b'{"a":{"dtype":', "ends before its object is closed, at byte 22"),
    "a trailing comma": (b'{"__metadata__":{},}', "a trailing comma before '}', at byte 27"),
    "a comma in an entry": (b'{"a":{"dtype":"F32",}}', "JSON error"),
    "no colon": (b'{"a" 1}', "expected ':' after the key, found '1', at byte 13"),
    "no comma": (b'{"__metadata__":{} "b":{}}', "expected ',' or '}', found '\"', at byte 27"),
    "no quotes": (b"{a:1}", "expected a key in double quotes, found 'a', at byte 9"),
    "a misspelt value": (b'{"a":nil}', "JSON error: expecting value, at byte 13"),
    "a bad escape": (b'{"a":{"\\x":1}}', "JSON error: invalid \\escape"),
    "a control character": (b'{"a\n":{}}', "JSON error: invalid control character"),
    "NaN in a shape": (b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', "NaN is not a JSON value"),
    "Infinity": (b'{"a":{"dtype":"F32","shape":[-Infinity]}}', "-Infinity is not a JSON value"),
    "a float": (changed(shape=[2.0]), "shape[0] is the number 2.0, not a whole number"),
    "a negative zero": (b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}', "shape[0] is the number -0.0"),
    "a string in a shape": (changed(shape=["2"]), "shape[0] is a string, not a whole number"),
    "a bool in a shape": (changed(shape=[1, True]), "shape[1] is the bool true, not a whole number"),
    "null in a shape": (changed(shape=[None]), "shape[0] is null, not a whole number"),
    "a string for a shape": (changed(shape="4"), "shape is a string, not a list"),
    "a negative size": (changed(shape=[-1]), "shape[0] is negative: -1"),
    "a negative offset": (changed(data_offsets=[-4, 0]), "data_offsets[0] is negative: -4"),
    "three offsets": (changed(data_offsets=[0, 4, 4]), "data_offsets has 3 numbers, not 2"),
    "one offset": (changed(data_offsets=[4]), "data_offsets has 1 numbers, not 2"),
    "a float offset": (changed(data_offsets=[0, 4.5]), "data_offsets[1] is the number 4.5"),
    "nested 2000 deep": (b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", "nested too deep"),
    "nested 200 deep": (b'{"a":{"x":' + b"[" * 200 + b"]" * 200 + b"}}", "nested too deep"),
    "a byte-order mark": (b'\xef\xbb\xbf{"a":1}', "a byte-order mark, at byte 8"),
    "a leading space": (b' {"a":1}', "begins with a blank, at byte 8"),
    "a leading newline": (b'\n{"a":1}', "begins with a blank, at byte 8"),
    "NULs first": (b"\0{}", "begins with NUL bytes"),
    "something else first": (b"#{}", "does not begin as JSON does"),
    "NUL padding": (b"{}\0\0\0\0\0\0", "padded with NUL bytes; the format pads with spaces, at byte 10"),
    "a second object": (b"{}{}", "a second JSON object after the header's own, at byte 10"),
    "text behind": (b"{} x", "unexpected text after the header's object: 'x', at byte 11"),
    "a lone surrogate": (b'{"\\ud800":{}}', "a lone surrogate"),
    "a lone surrogate inside": (b'{"a":{"x":["\\udc00"]}}', "a lone surrogate"),
    "a key twice in an entry": (b'{"a":{"dtype":"F32","dtype":"F32"}}', "the key 'dtype' appears twice"),
    "a number beyond the doubles": (b'{"a":{"x":1e999}}', "1e999 is out of range"),
    "5000 digits": (b'{"a":{"x":' + b"9" * 5000 + b"}}", "is out of range"),
}


@pytest.mark.parametrize("case", B017)
def test_b017_each_trouble_with_a_header_has_its_own_words(case: str, tmp_path: Path) -> None:
    header, words = B017[case]
    body = b"" if isinstance(header, bytes) else bytes(4)
    assert words in refused_header(tmp_path, header, body=body)


def test_b017_no_two_troubles_share_their_words() -> None:
    pairs = [(a, b) for a in B017.values() for b in B017.values() if a is not b and a[1] == b[1]]
    assert all("nested" in a[1] or "surrogate" in a[1] or "blank" in a[1] for a, _ in pairs)


def test_b017_a_header_of_length_zero_says_so(tmp_path: Path) -> None:
    assert "the length field says 0" in refused_header(tmp_path, b"", body=b"1234")


@pytest.mark.parametrize("second", [[0, 4], [4, 8]], ids=["equal ranges", "other ranges"])
def test_b019_equal_names_in_one_header_are_refused_with_the_name(second: list[int], tmp_path: Path) -> None:
    again = json.dumps({**SOUND, "data_offsets": second})
    header = f'{{"a":{json.dumps(SOUND)},"a":{again}}}'.encode()
    message = refused_header(tmp_path, header, DuplicateTensorError, bytes(second[1]))
    assert "twice" in message
    assert "tensor 'a'" in message


@pytest.mark.parametrize(
    ("header", "gap"),
    [
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 12, 20)}, "[8, 12) after tensor 'a'"),
        ({"b": entry("F32", [2], 12, 20), "a": entry("F32", [2], 0, 8)}, "[8, 12) after tensor 'a'"),
        ({"a": entry("F32", [4], 4, 20)}, "[0, 4) before the first tensor"),
        ({"a": entry("F32", [0], 20, 20)}, "[0, 20) before the first tensor"),
    ],
)
def test_b020_a_gap_is_named(header: dict[str, Any], gap: str, tmp_path: Path) -> None:
    assert f"a gap: data bytes {gap}" in refused_header(tmp_path, header, TensorLayoutError, bytes(20))


@pytest.mark.parametrize(
    "header", [{"a": entry("F32", [2], 0, 8)}, {"a": entry("F32", [0], 8, 8), "b": entry("F32", [2], 0, 8)}]
)
def test_b020_a_gap_at_the_very_end_is_named(header: dict[str, Any], tmp_path: Path) -> None:
    message = refused_header(tmp_path, header, TrailingBytesError, bytes(12))
    assert "data bytes [8, 12) at the end of the file belong to no tensor" in message


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([2**32, 2**32], "the product of the shape overflows"),
        ([2**63, 2], "a dimension that does not fit a signed 64-bit integer"),
        ([2**62, 2], "the product of the shape overflows"),
        ([0, 2**63, 2**63], "a dimension that does not fit"),
        ([0, 2**63], "a dimension that does not fit"),
        ([2**63, 2**63, 0], "a dimension that does not fit"),
        ([0, 2**64], "a dimension that does not fit"),
        ([10**300, 0], "a dimension that does not fit"),
        ([0, 2**62, 2], "the product of the shape overflows"),
        ([2**62, 4, 0], "the product of the shape overflows"),
        ([1] * 65, "65 dimensions; torch can use 64"),
    ],
)
def test_b023_a_shape_that_overflows_is_refused_with_the_shape(shape: list[int], words: str, tmp_path: Path) -> None:
    message = refused_header(tmp_path, {"a": entry("F32", shape, 0, 0)}, ShapeError, b"")
    assert words in message
    assert "tensor 'a'" in message
    assert str(shape[0])[:20] in message


def test_b023_a_hundred_thousand_dimensions_are_refused(tmp_path: Path) -> None:
    message = refused_header(tmp_path, {"a": entry("F32", [1] * 100_000, 0, 4)}, ShapeError)
    assert "100000 dimensions; torch can use 64" in message
    assert len(message) < 500


@pytest.mark.parametrize("shape", [[1] * 64, [0, 2**63 - 1], [2**61, 0]])
def test_b023_what_torch_can_have_is_read(shape: list[int], tmp_path: Path) -> None:
    nbytes = 0 if 0 in shape else 4
    path = write_safetensors(tmp_path / "m", {"a": entry("F32", shape, 0, nbytes)}, bytes(nbytes))
    meta = read_header(path).tensors["a"]
    assert meta.shape == tuple(torch.empty(shape).shape)


@pytest.mark.parametrize("dtype", ["Q9_9", "f32", ""])
def test_b024_an_unknown_dtype_is_its_own_error_and_is_listed(dtype: str, tmp_path: Path) -> None:
    header = {"a": entry(dtype, [1], 0, 4), "b": entry("F32", [1], 4, 8)}
    path = write_safetensors(tmp_path / "m", header, bytes(8))
    message = refused(path, UnknownDtypeError)
    assert f"unknown dtype {dtype!r}" in message
    assert "BF16" in message
    found, _ = scan_header(path)
    assert [(meta.name, meta.source_dtype, meta.dtype) for meta in found.tensors.values()] == [
        ("a", dtype, "unknown"),
        ("b", "F32", "float32"),
    ]


@pytest.mark.parametrize(("dtype", "word"), [(5, "the number 5"), (None, "null"), ({"F32": None}, "an object")])
def test_b024_a_dtype_that_is_no_string_is_a_malformed_entry(dtype: Any, word: str, tmp_path: Path) -> None:
    assert f"dtype is {word}, not a string" in refused_header(tmp_path, {"a": entry(dtype, [1], 0, 4)})


def test_b024_an_unknown_dtype_skips_no_check_of_bounds(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m", {"a": entry("Q9_9", [1], 0, 400)}, bytes(4))
    assert [type(each) for each in scan_header(path)[1]] == [UnknownDtypeError, TruncatedFileError]


@pytest.mark.parametrize("metadata", [None, {}, {"made by": "hand"}])
def test_b026_missing_metadata_is_an_empty_mapping(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    header = {"a": SOUND} if metadata is None else {"__metadata__": metadata, "a": SOUND}
    path = write_safetensors(tmp_path / "m", header, bytes(4))
    assert read_header(path).metadata == (metadata or {})
    assert read_headers([path]).files[0].metadata == (metadata or {})


@pytest.mark.parametrize(
    ("value", "word"),
    [(7, "the number 7"), ({"x": "y"}, "an object"), ([], "a list"), (None, "null"), (True, "the bool")],
)
def test_b028_metadata_that_is_no_string_is_named_by_its_key(value: Any, word: str, tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt", "step": value}, "a": SOUND}
    message = refused_header(tmp_path, header)
    assert f"metadata key 'step' holds {word}" in message
    assert "not a string" in message


@pytest.mark.parametrize("value", [SOUND, 7, [], "x"])
def test_b028_a_tensor_or_anything_else_in_place_of_metadata_is_refused(value: Any, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m", {"__metadata__": value, "a": SOUND}, bytes(4))
    _, problems = scan_header(path)
    assert problems
    assert all("metadata" in str(each) for each in problems)


B035 = {
    "F4": 4, "F8_E8M0": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6,
    "U8": 8, "I8": 8, "BOOL": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


def test_b035_the_one_table_knows_every_dtype() -> None:
    assert {name: dtype.bits for name, dtype in DTYPES.items()} == B035


@pytest.mark.parametrize("dtype", B035)
def test_b035_a_file_of_each_dtype_is_read(dtype: str, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m", {"a": entry(dtype, [2, 4], 0, B035[dtype])}, bytes(B035[dtype]))
    meta = read_header(path).tensors["a"]
    assert (meta.shape, meta.nbytes) == ((2, 4), B035[dtype])
    assert meta.stored_shape == ((2, 2) if dtype == "F4" else (2, 4))


def test_b035_f4_of_an_odd_last_dimension_is_refused(tmp_path: Path) -> None:
    for shape in ([2, 3], [4, 1], [0, 3], []):
        assert "last dimension divisible by 2" in refused_header(
            tmp_path, {"a": entry("F4", shape, 0, 3)}, ShapeError, bytes(3)
        )


def test_b035_f6_that_does_not_fill_its_bytes_is_refused(tmp_path: Path) -> None:
    assert "whole bytes" in refused_header(tmp_path, {"a": entry("F6_E2M3", [3], 0, 3)}, ShapeError, bytes(3))


def test_b038_an_old_torch_without_uint64_reads_all_else() -> None:
    # A process of its own, because the attribute must be gone before the package is imported.
    code = """
import torch
del torch.uint64
from weight_readers_safetensors import torch_dtype
print(torch_dtype("F32", path="m"))
torch_dtype("U64", path="m", tensor="w")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "torch.float32"
    assert "UnsupportedDtypeError: torch" in done.stderr.strip().splitlines()[-1]
    assert "has no dtype for U64: m, tensor 'w' (expected torch.uint64" in done.stderr


@pytest.mark.parametrize("name", ["U16", "U32", "U64", "C64"])
def test_b038_the_dtypes_of_the_report_are_there(name: str, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m", {"a": entry(name, [8], 0, B035[name])}, bytes(B035[name]))
    meta = read_header(path).tensors["a"]
    assert torch_dtype(meta.source_dtype, path=meta.file) is getattr(torch, meta.dtype)


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry("F32", [0], 0, 0), "b": entry("BF16", [3, 0], 0, 0)},
        {"a": entry("F32", [1], 0, 4), "z": entry("F32", [0, 7], 4, 4)},
        {"z": entry("F32", [0], 0, 0), "a": entry("F32", [1], 0, 4)},
    ],
)
def test_b039_tensors_without_elements_are_tensors(header: dict[str, Any], tmp_path: Path) -> None:
    body = bytes(max(each["data_offsets"][1] for each in header.values()))
    found = read_header(write_safetensors(tmp_path / "m", header, body)).tensors
    assert {name: list(meta.shape) for name, meta in found.items()} == {
        name: each["shape"] for name, each in header.items()
    }
