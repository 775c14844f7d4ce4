# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from support.files import entry, floats, write_safetensors, write_tensors

from weight_readers.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointProblems,
    DuplicateTensorError,
    FileChangedError,
    HeaderError,
    ShapeError,
    TensorLayoutError,
    TruncatedFileError,
    UnknownDtypeError,
    UnreadableFileError,
)
from weight_readers.reader import FileMeta
from weight_readers_safetensors import read_header, scan_header
from weight_readers_safetensors._text import HeaderText

PLAIN = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def test_a_header_tells_what_the_library_tells(tmp_path: Path) -> None:
    path = write_tensors(
        tmp_path / "m.safetensors",
        {
            "b": ("BF16", [2, 1], b"abcd"),
            "a": ("F4", [2, 2], b"ef"),
            "s": ("F32", [], floats(1)),
            "z": ("U8", [0], b""),
        },
        format="pt",
    )
    found = read_header(path)
    with safe_open(path, "pt") as file:
        assert {name: list(meta.shape) for name, meta in found.tensors.items()} == {
            name: file.get_slice(name).get_shape() for name in sorted(file.keys(), key=list("basz").index)
        }
        assert found.metadata == file.metadata()
        assert [tuple(file.get_tensor(name).shape) for name in "basz"] == [
            meta.stored_shape for meta in found.tensors.values()
        ]
    data = path.read_bytes()
    assert data[found.tensors["a"].offset :][: found.tensors["a"].nbytes] == b"ef"
    assert found.tensors["b"].dtype == "bfloat16"
    assert found.tensors["a"].source_dtype == "F4"
    assert found.header_bytes == found.tensors["b"].offset == len(data) - 10
    assert found.file_meta() == FileMeta(
        path=str(path),
        format="safetensors",
        nbytes=len(data),
        header_bytes=found.header_bytes,
        metadata={"format": "pt"},
    )


def test_the_order_is_that_of_the_header(tmp_path: Path) -> None:
    header = {"b": entry("U8", [1], 1, 2), "a": entry("U8", [1], 0, 1)}
    assert list(read_header(write_safetensors(tmp_path / "m", header, b"12")).tensors) == ["b", "a"]


def spellings(name: str) -> list[bytes]:
    plain = {name: PLAIN, "t": entry("F32", [1], 4, 8)}
    return [
        json.dumps(plain, separators=(",", ":")).encode(),
        json.dumps(plain).encode(),
        json.dumps(plain, indent=1).encode(),
        json.dumps(plain, ensure_ascii=False).encode(),
        json.dumps({k: dict(reversed(v.items())) for k, v in plain.items()}).encode(),
        json.dumps({k: {**v, "more": {"x": [1.5, None, "\\"]}} for k, v in plain.items()}).encode(),
    ]


@pytest.mark.parametrize("spelling", range(6))
@pytest.mark.parametrize("name", ["a", "", "ä😀", 'q"\\', "},{", "new\nline"])
def test_every_spelling_of_a_header_says_the_same(name: str, spelling: int, tmp_path: Path) -> None:
    found = read_header(write_safetensors(tmp_path / "m", spellings(name)[spelling], floats(1, 2)))
    assert [(meta.name, meta.shape, meta.offset - found.header_bytes) for meta in found.tensors.values()] == [
        (name, (1,), 0),
        ("t", (1,), 4),
    ]


@pytest.mark.parametrize("count", [3000, 20000])
def test_headers_of_many_windows_are_read_whole(count: int, tmp_path: Path) -> None:
    header: dict[str, Any] = {f"ä{i}": entry("U8", [1], i, i + 1) for i in range(count)}
    path = write_safetensors(tmp_path / "m", json.dumps(header, ensure_ascii=False).encode(), bytes(count))
    assert [(meta.name, meta.offset) for meta in read_header(path).tensors.values()] == [
        (f"ä{i}", path.stat().st_size - count + i) for i in range(count)
    ]


def test_a_window_of_any_size_gives_the_same_members() -> None:
    text = json.dumps({"a": {**PLAIN, "x": "ä😀" * 3}, "ö": PLAIN, "n": 12345}, ensure_ascii=False).encode()

    class Drip:
        def __init__(self, step: int) -> None:
            self.at, self.step = 0, step

        def read(self, size: int, /) -> bytes:
            piece = text[self.at : self.at + min(size, self.step)]
            self.at += len(piece)
            return piece

    def members(step: int) -> dict[str, Any]:
        header = HeaderText(Drip(step), len(text), "m", None)
        found: dict[str, Any] = {}
        for name, run in header.entries():
            found |= dict.fromkeys(run.names, PLAIN) if run else {name: header.value(1000, "x")}
        header.finish()
        return found

    assert [members(step) for step in range(1, len(text))] == [json.loads(text)] * (len(text) - 1)


@pytest.mark.parametrize("blanks", [0, 7, 300_000])
def test_blanks_pad_the_end_and_stand_anywhere_between(blanks: int, tmp_path: Path) -> None:
    pad = b" " * blanks
    text = b"{" + pad + b'"a"' + pad + b":" + pad + json.dumps(PLAIN).encode() + b"\t\n\r" + pad + b"}" + pad
    assert list(read_header(write_safetensors(tmp_path / "m", text, floats(1))).tensors) == ["a"]


@pytest.mark.parametrize("text", [b"{}", b"{}      ", b'{"__metadata__":{}}', b'{"__metadata__":null}'])
def test_a_file_without_tensors_is_a_file(text: bytes, tmp_path: Path) -> None:
    found = read_header(write_safetensors(tmp_path / "m", text))
    assert (found.tensors, found.metadata) == ({}, {})


def test_all_problems_are_collected_with_what_can_be_listed(tmp_path: Path) -> None:
    header = {
        "a": entry("Q9", [1], 0, 4),
        "b": entry("F32", [3], 4, 8),
        "c": entry("F32", [1], 12, 16),
        "d": entry("F32", [2**40, 2**40], 16, 20),
        "e": {"dtype": "F32"},
    }
    path = write_safetensors(tmp_path / "m", header, bytes(10))
    found, problems = scan_header(path)
    assert [(type(each), each.tensor) for each in problems] == [
        (UnknownDtypeError, "a"),
        (TensorLayoutError, "b"),
        (ShapeError, "d"),
        (HeaderError, "e"),
    ]
    assert list(found.tensors) == ["a", "b", "c", "d"]
    assert (found.tensors["a"].dtype, found.tensors["a"].source_dtype) == ("unknown", "Q9")
    with pytest.raises(CheckpointProblems) as caught:
        read_header(path)
    assert caught.value.partial == tuple(found.tensors.values())

    del header["e"]
    _, problems = scan_header(write_safetensors(tmp_path / "m", header, bytes(10)))
    assert [type(each) for each in problems[3:]] == [TensorLayoutError, TruncatedFileError]


def test_many_problems_stop_at_a_hundred(tmp_path: Path) -> None:
    header = {f"t{i}": 1 for i in range(1000)}
    _, problems = scan_header(write_safetensors(tmp_path / "m", header))
    assert len(problems) == 101
    assert "more than 100 problems" in str(problems[-1])


def test_what_stands_before_a_structural_fault_is_listed(tmp_path: Path) -> None:
    text = json.dumps({"a": PLAIN, "b": PLAIN}).encode()
    for fault in (b"\xff", b",,", b'"x"'):
        found, problems = scan_header(write_safetensors(tmp_path / "m", text[:-1] + b"," + fault + b"}", floats(1)))
        assert list(found.tensors)[:1] == ["a"]
        assert any(isinstance(each, HeaderError) for each in problems)


def test_overlaps_and_reversed_offsets_are_named(tmp_path: Path) -> None:
    header = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}
    with pytest.raises(TensorLayoutError, match=r"overlap: data bytes \[4, 8\) also belong to tensor 'a'.*tensor 'b'"):
        read_header(write_safetensors(tmp_path / "m", header, bytes(12)))
    with pytest.raises(TensorLayoutError, match="end before they begin"):
        read_header(write_safetensors(tmp_path / "m", {"a": entry("F32", [0], 4, 0)}, bytes(4)))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.mkdir(), "a folder"),
        (os.mkfifo, "a named pipe"),
        (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "a socket"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_is_no_regular_file_is_refused_without_blocking(
    make: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("m"))
    with pytest.raises(UnreadableFileError, match=f"{kind}, not a file: m"):
        read_header("m")


@pytest.mark.parametrize("name", ["missing", "a\0b", "file/x"])
def test_nothing_there_is_not_found(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(CheckpointNotFoundError):
        read_header(tmp_path / name)


def test_a_dangling_link_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "m").symlink_to("../blobs/abc")
    with pytest.raises(CheckpointNotFoundError, match=r"a link to \.\./blobs/abc"):
        read_header(tmp_path / "m")


def test_an_io_error_is_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tensors(tmp_path / "m", {"a": ("F32", [1], floats(1))})

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableFileError, match="Permission denied"):
        read_header(path)


def test_a_file_that_shrinks_while_it_is_read_is_a_changed_file() -> None:
    class Shrunk:
        def read(self, size: int, /) -> bytes:
            return b""

    with pytest.raises(FileChangedError):
        HeaderText(Shrunk(), 10, "m", None).peek()


def test_the_path_stays_as_the_caller_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path / "m", {"a": ("F32", [1], floats(1))})
    monkeypatch.chdir(tmp_path)
    found = read_header("./m")
    assert (found.path, found.tensors["a"].file) == ("./m", "./m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"%s":1}' % (b"n" * 70_000), "a name takes more than 65536 characters"),
        (b'{"a":{"x":"%s"}}' % (b"n" * 300_000), "the entry of one tensor takes more than 262144 characters"),
        (b'{"__metadata__":{"x":"%s"}}' % (b"n" * 4_200_000), "takes more than 4194304 characters"),
        (b'{"__metadata__":{"x":"%s","y":"%s"}}' % ((b"n" * 2_100_000,) * 2), "takes more than 4194304 characters"),
        (json.dumps({"__metadata__": {str(i): "" for i in range(8_193)}}).encode(), "8192 keys"),
    ],
)
def test_the_limits_are_named(text: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match=message):
        read_header(write_safetensors(tmp_path / "m", text))


def test_below_the_limits_all_is_read(tmp_path: Path) -> None:
    metadata = {"big": "x" * 4_000_000, "emoji": "😀" * 10_000}
    header = {"__metadata__": metadata, "n" * 60_000: {**PLAIN, "x": "y" * 200_000}}
    found = read_header(write_safetensors(tmp_path / "m", json.dumps(header).encode(), floats(1)))
    assert found.metadata == metadata
    assert list(found.tensors) == ["n" * 60_000]


def test_threads_read_headers_independently(tmp_path: Path) -> None:
    paths = [write_tensors(tmp_path / str(i), {f"t{i}": ("F32", [1], floats(i))}) for i in range(8)]
    found: list[str] = []
    threads = [threading.Thread(target=lambda path=path: found.extend(read_header(path).tensors)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [f"t{i}" for i in range(8)]


def test_a_length_beyond_the_formats_limit_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", 100_000_001) + b'{"a":1}')
    with pytest.raises(HeaderError, match="at most 100000000 bytes, found a length field of 100000001"):
        read_header(path)


def test_duplicates_are_found_in_any_spelling(tmp_path: Path) -> None:
    text = b'{"a":%s,"\\u0061":%s}' % (json.dumps(PLAIN).encode(), json.dumps(PLAIN).encode())
    with pytest.raises(DuplicateTensorError, match=r"twice.*tensor 'a'"):
        read_header(write_safetensors(tmp_path / "m", text, floats(1)))


def test_errors_are_checkpoint_errors_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(write_safetensors(tmp_path / "m", b'{"a":1}'))
    assert caught.value.path == str(tmp_path / "m")


def test_a_listing_of_many_tensors_holds_few_objects(tmp_path: Path) -> None:
    """Each object that the garbage collector looks at brings the next full collection of the process nearer."""
    header = {f"t{n}": {"dtype": "U8", "shape": [2], "data_offsets": [2 * n, 2 * n + 2]} for n in range(5000)}
    path = write_safetensors(tmp_path / "m", header, bytes(10_000))
    read_header(path)
    gc.collect()
    before = len(gc.get_objects())
    found = read_header(path)
    assert len(gc.get_objects()) - before < 100
    assert (found.tensors["t4999"].name, found.tensors["t4999"].nbytes) == ("t4999", 2)
    assert found.tensors["t4999"].offset == path.stat().st_size - 2
