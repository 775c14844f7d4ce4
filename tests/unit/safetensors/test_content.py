# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from support.files import entry, write_safetensors

from weight_readers.errors import EmptyFileError, ForeignContentError, LfsPointerError
from weight_readers_files.content import recognise
from weight_readers_safetensors import foreign_content

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 4974351112\n"


def saved(write: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    write(torch.ones(2), buffer, **options)  # type: ignore[operator]
    return buffer.getvalue()


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.txt", "a")
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo("a"))
    return buffer.getvalue()


def numpy_file() -> bytes:
    buffer = io.BytesIO()
    numpy.save(buffer, numpy.ones(2))
    return buffer.getvalue()


FOREIGN = {
    "torch zip": (saved(torch.save), "a torch checkpoint", '"weight-readers[pt]"'),
    "zip": (archive(), "a zip archive", "Unpack"),
    "legacy torch": (saved(torch.save, _use_new_zipfile_serialization=False), "a pickle", '"weight-readers[pt]"'),
    "pickle 2": (pickle.dumps([1] * 9, protocol=2), "a pickle", ".pt"),
    "pickle 5": (pickle.dumps([1] * 9, protocol=5), "a pickle", ".pt"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(16), "a GGUF file", 'pip install "weight-readers[gguf]"'),
    "html": (b"\n <!DOCTYPE html><html>", "an HTML page", "download the file again"),
    "html without doctype": (b"<HTML><head>", "an HTML page", "download"),
    "xml": (b"<?xml version='1.0'?><Error>", "an XML document", "download"),
    "json": (b'{"metadata": {}, "weight_map": {}}', "JSON text", "index"),
    "json with a mark": (b'\xef\xbb\xbf{"error": "Unauthorized"}', "JSON text", "error"),
    "gzip": (gzip.compress(b"abc"), "a gzip archive", "gunzip"),
    "tar": (tarred(), "a tar archive", "tar -xf"),
    "text": (b"Repository not found, or you lack access.\n", "text", "download the file again"),
    "text cut within a letter": ("Zugriff verweigert: f\u00fc".encode()[:-1], "text", "download the file again"),
    "numpy": (numpy_file(), "a numpy file", "Convert"),
    "zeros": (bytes(100), "nothing but zero bytes", "download"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign_content_says_what_the_name_claims_what_it_is_and_what_to_do(case: str) -> None:
    head, name, fix = FOREIGN[case]
    error = foreign_content("folder/model.safetensors", head)
    assert type(error) is ForeignContentError
    assert f"the name says .safetensors, and the content is {name}" in str(error)
    assert fix in str(error)
    assert error.path == "folder/model.safetensors"


def test_a_name_without_a_suffix_claims_nothing() -> None:
    assert "read as safetensors, and the content is a GGUF file" in str(
        foreign_content("blobs/abc", b"GGUF" + bytes(9))
    )


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_a_git_lfs_pointer_tells_the_oid_and_the_size_it_stands_for(newline: bytes) -> None:
    head = POINTER.replace(b"\n", newline)
    error = foreign_content("model.safetensors", head)
    assert isinstance(error, LfsPointerError)
    assert f"stands for sha256:{'ab' * 32} of 4974351112 bytes" in str(error)
    assert "`git lfs pull`" in str(error)
    assert error.expected == "4974351112 bytes"


def test_a_pointer_cut_short_is_still_one() -> None:
    error = foreign_content("model.safetensors", POINTER[:30])
    assert isinstance(error, LfsPointerError)
    assert "unknown oid" in str(error)


def test_a_tensor_named_like_a_pointer_makes_none(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m", {"version https://git-lfs": entry("U8", [1], 0, 1)}, b"1")
    assert foreign_content(str(path), path.read_bytes()) is None


@pytest.mark.parametrize("length", [0x0280, 0x0480, 0x04034B50])
def test_a_header_length_that_looks_like_a_magic_number_is_a_length(length: int) -> None:
    assert foreign_content("m", length.to_bytes(8, "little") + b'{"a":') is None


def test_nothing_at_all_is_an_empty_file() -> None:
    error = foreign_content("m.safetensors", b"")
    assert isinstance(error, EmptyFileError)
    assert "empty file (0 bytes): m.safetensors" in str(error)


def test_what_is_not_known_is_not_named() -> None:
    assert recognise(b"\x01\x02 hello world") is None
    assert recognise(b"hello") is None
    assert recognise(b"") is None
