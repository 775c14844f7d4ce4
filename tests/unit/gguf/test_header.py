# SPDX-License-Identifier: Apache-2.0
"""Headers that are right: what is read from them, beside what gguf and ggml read."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path

import pytest
from unit.gguf.gguf_bytes import array, front, gguf_bytes, info, padded, raw_pair, text, write_gguf
from unit.gguf.header_oracles import Seen, by_ggml, by_gguf, same, without_outer_ones

from weight_readers.errors import CheckpointNotFoundError, FileChangedError
from weight_readers_gguf.header import GGUFHeader, read_header
from weight_readers_gguf.header.metadata import KEPT_BYTES

METADATA = {
    "general.architecture": "llama",
    "u8": ("UINT8", 255),
    "i8": ("INT8", -128),
    "u16": ("UINT16", 65535),
    "i16": ("INT16", -32768),
    "u32": ("UINT32", 2**32 - 1),
    "i32": ("INT32", -(2**31)),
    "u64": ("UINT64", 2**64 - 1),
    "i64": ("INT64", -(2**63)),
    "f32": ("FLOAT32", 0.1),
    "f64": ("FLOAT64", 0.1),
    "yes": True,
    "no": False,
    "empty": "",
    "grüße": "schön 😀",
    "strings": ["", "a", "schön", "😀" * 100],
    "numbers": ("INT16", [1, -2, 3]),
    "doubles": ("FLOAT64", [math.inf, -0.0, math.nan]),
    "flags": [True, False, True],
}
TENSORS = {
    "token_embd.weight": (12, (3, 512), bytes(864)),
    "blk.0.norm.weight": (0, (5,), bytes(20)),
    "blk.0.q.weight": (2, (4, 96), bytes(216)),
    "conv.weight": (1, (2, 3, 4, 32), bytes(1536)),
    "ids": (27, (7,), bytes(56)),
    "bf": (30, (3, 5), bytes(30)),
    "last.weight": (39, (2, 64), bytes(68)),
}


def seen(header: GGUFHeader) -> Seen:
    tensors = {each.name: (each.shape, each.type, each.offset, each.nbytes) for each in header.tensors}
    return Seen(header.version, header.alignment, dict(header.metadata), tensors)


def check_same(expected: Seen, actual: Seen) -> None:
    assert (expected.version, expected.alignment) == (actual.version, actual.alignment)
    assert list(expected.metadata) == list(actual.metadata)
    different = [key for key, value in expected.metadata.items() if not same(value, actual.metadata[key])]
    assert different == []
    assert expected.tensors == actual.tensors


@pytest.mark.parametrize("alignment", [32, 1, 64, 4096])
def test_all_that_a_header_says_is_read_as_the_gguf_package_reads_it(tmp_path: Path, alignment: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", TENSORS, METADATA, alignment=alignment)
    check_same(by_gguf(path), seen(read_header(path)))


def test_all_that_a_header_says_is_read_as_ggml_reads_it(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TENSORS, METADATA, alignment=128)
    expected = by_ggml(path)
    assert expected is not None
    ours = seen(read_header(path))
    shapes = {name: (without_outer_ones(each[0]), *each[1:]) for name, each in ours.tensors.items()}
    check_same(expected, ours._replace(tensors=shapes))


def test_version_2_is_read_as_version_3_is(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TENSORS, METADATA, version=2)
    check_same(by_gguf(path), seen(read_header(path)))


def test_sizes_and_the_beginning_of_the_data_are_those_of_the_file(tmp_path: Path) -> None:
    content = gguf_bytes({"a": (0, (8,), b"\x01" * 32)}, {"k": 1})
    (tmp_path / "m.gguf").write_bytes(content)
    header = read_header(tmp_path / "m.gguf")
    assert (len(content), content.index(b"\x01" * 32)) == (header.nbytes, header.header_bytes)


def test_metadata_tells_the_type_of_a_value(tmp_path: Path) -> None:
    metadata = read_header(write_gguf(tmp_path / "m.gguf", {}, METADATA)).metadata
    named = [metadata.type_name(key) for key in ("u16", "empty", "yes", "numbers", "strings")]
    assert named == ["UINT16", "STRING", "BOOL", "ARRAY[INT16]", "ARRAY[STRING]"]


def test_metadata_tells_the_number_of_items_and_of_bytes_and_the_integers(tmp_path: Path) -> None:
    metadata = read_header(write_gguf(tmp_path / "m.gguf", {}, METADATA)).metadata
    assert [metadata.length(k) for k in ("strings", "flags", "numbers", "empty", "grüße", "i8")] == [4, 3, 3, 0, 11, 1]
    integers = {key: value for key in metadata if (value := metadata.integer(key)) is not None}
    assert {key: value[1] for key, value in METADATA.items() if key[0] in "ui"} == integers


@pytest.mark.parametrize("letter", ["x", "ü", "€", "😀"])
@pytest.mark.parametrize("before", ["", "-", "--", "---"])
def test_a_long_text_is_shown_by_its_beginning_and_its_number_of_bytes(
    tmp_path: Path, letter: str, before: str
) -> None:
    texts = {str(size): before + letter * (size - len(before)) for size in (80, 81, 1000, 1001, 3000, 70_000)}
    metadata = read_header(write_gguf(tmp_path / "m.gguf", {}, texts)).metadata
    for most in (80, 1000):
        for key, value in texts.items():
            whole = value if len(value) <= most else f"{value[:most]}... ({len(value.encode())} bytes)"
            assert whole == metadata.shown(key, most)


def test_values_are_shown_whatever_became_of_the_file(tmp_path: Path) -> None:
    texts = {f"t{i}": "x" * 60_000 for i in range(60)}
    path = write_gguf(
        tmp_path / "m.gguf", {}, texts | {"u64": ("UINT64", 1), "yes": True, "array": [1] * 9, "name": "M"}
    )
    metadata = read_header(path).metadata
    path.unlink()
    shown = {key: metadata.shown(key) for key in metadata}
    assert (shown["u64"], shown["yes"], shown["array"], shown["name"]) == ("1", "True", "ARRAY[UINT32]", "M")
    assert {f"{'x' * 80}... (60000 bytes)", "(60000 bytes of text)"} == {shown[key] for key in texts}


def test_a_key_that_is_not_there_is_named_with_its_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"a": 1})
    metadata = read_header(path).metadata
    assert (metadata.get("b"), "b" in metadata) == (None, False)
    with pytest.raises(KeyError, match=r"m\.gguf has no key 'b'"):
        metadata["b"]


def test_arrays_within_arrays_are_read_with_their_structure(tmp_path: Path) -> None:
    nested = [[[1, 2], [3]], [[4]]]
    path = write_gguf(tmp_path / "m.gguf", {}, {"n": nested, "behind": 7})
    metadata = read_header(path).metadata
    assert (nested, 7) == (metadata["n"], metadata["behind"])


def test_strings_that_are_no_utf8_stay_readable(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(padded(front(0, 1) + raw_pair("k", 9, array(8, 2, text(b"a\xff") + text("b")))))
    assert read_header(tmp_path / "m.gguf").metadata["k"] == ["a\\xff", "b"]


def test_a_value_longer_than_what_is_kept_is_read_from_the_file_when_asked_for(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"long": ("UINT32", list(range(50_000))), "u64": ("UINT64", 2**64 - 1)})
    header = pickle.loads(pickle.dumps(read_header(path)))
    assert list(range(50_000)) == header.metadata["long"]
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(FileChangedError, match=r"m\.gguf"):
        header.metadata["long"]
    path.unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"m\.gguf"):
        header.metadata["long"]
    assert header.metadata["u64"] == 2**64 - 1


def test_no_descriptor_and_no_mapping_of_the_file_stays_open(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TENSORS, {"long": ("UINT8", [1] * (KEPT_BYTES + 1))})
    before = os.listdir("/proc/self/fd")
    header = read_header(path)
    assert len(header.metadata["long"]) == KEPT_BYTES + 1
    assert before == os.listdir("/proc/self/fd")
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_strings_longer_than_the_window_are_passed_over_and_read(tmp_path: Path) -> None:
    strings = ["x" * size for size in (70_000, 0, 65_520, 3_000_000, 1, 200_000)] * 2
    path = write_gguf(tmp_path / "m.gguf", TENSORS, {"before": 1, "strings": strings, "behind": 2})
    header = read_header(path)
    assert (strings, 2, len(TENSORS)) == (header.metadata["strings"], header.metadata["behind"], len(header.tensors))


@pytest.mark.parametrize("length", range(65_490, 65_550, 7))
def test_a_header_is_read_right_wherever_its_window_ends(tmp_path: Path, length: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", TENSORS, {"a": "x" * (length - 60), "s": ["b", "cd"], "behind": 2**31})
    check_same(by_gguf(path), seen(read_header(path)))


@pytest.mark.parametrize("size", [1, 64, 127, 128, 300, 65_535])
def test_a_name_may_be_that_long(tmp_path: Path, size: int) -> None:
    name = "ü" * (size // 2) + "n" * (size % 2)
    path = write_gguf(tmp_path / "m.gguf", {name: (0, (1,), bytes(4))}, {name: 1})
    header = read_header(path)
    assert ([name], 1) == ([each.name for each in header.tensors], header.metadata[name])


@pytest.mark.parametrize("rank", range(9))
def test_a_tensor_may_have_up_to_8_dimensions(tmp_path: Path, rank: int) -> None:
    shape = tuple(range(1, rank + 1))
    path = write_gguf(tmp_path / "m.gguf", {"a": (24, shape, bytes(math.prod(shape)))})
    assert [shape] == [each.shape for each in read_header(path).tensors]


def test_a_tensor_without_elements_is_one_of_no_bytes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a": (0, (0, 8), b""), "b": (0, (2,), bytes(8))})
    assert [(each.name, each.nbytes) for each in read_header(path).tensors] == [("a", 0), ("b", 8)]


def test_tensors_may_lie_in_any_order_and_with_gaps(tmp_path: Path) -> None:
    tensors = {"a": (0, (8,), b"a" * 32), "b": (0, (8,), b"b" * 32)}
    path = write_gguf(tmp_path / "m.gguf", tensors, offsets={"a": 4096, "b": 32})
    content, header = path.read_bytes(), read_header(path)
    assert {t.name: content[t.offset : t.offset + 32] for t in header.tensors} == {"a": b"a" * 32, "b": b"b" * 32}


def test_the_alignment_may_be_up_to_a_mebibyte(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a": (0, (8,), b"a" * 32)}, alignment=1 << 20)
    assert read_header(path).tensors[0].offset == 1 << 20


def test_bytes_behind_the_last_tensor_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"a": (0, (8,), bytes(32))}) + b"signature")
    assert len(read_header(path).tensors) == 1


def test_a_file_of_metadata_only_needs_no_padding(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(front(0, 1) + raw_pair("k", 7, b"\x01"))
    header = read_header(tmp_path / "m.gguf")
    assert ({"k": True}, (), header.nbytes) == (dict(header.metadata), header.tensors, header.header_bytes)


@pytest.mark.parametrize("type_id", [43, 200, 2**32 - 1, 4, 31, 36])
def test_a_type_that_is_not_known_spoils_neither_metadata_nor_other_tensors(tmp_path: Path, type_id: int) -> None:
    tensors = {"a": (type_id, (4, 3), bytes(64)), "b": (0, (2,), bytes(8))}
    header = read_header(write_gguf(tmp_path / "m.gguf", tensors, {"k": 1}))
    assert header.metadata["k"] == 1
    assert [("a", type_id, None), ("b", 0, 8)] == [(t.name, t.type, t.nbytes) for t in header.tensors]


def test_q8_1_takes_36_bytes_whatever_the_gguf_package_says(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "m.gguf", {"a": (9, (2, 32), bytes(72))}))
    assert header.tensors[0].nbytes == 72


def test_a_path_object_is_taken_and_the_path_kept_as_text(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert str(path) == read_header(path).path == read_header(str(path)).path


def test_an_entry_that_ends_with_the_file_needs_no_byte_more(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(front(1, 0) + info("a", (0,), 0, 0))
    assert read_header(tmp_path / "m.gguf").tensors[0].nbytes == 0
