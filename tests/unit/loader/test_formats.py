# SPDX-License-Identifier: Apache-2.0
"""Formats: what a name claims, what the first bytes are, and which of the two is believed."""

from __future__ import annotations

import struct

import pytest

from weight_readers.errors import ForeignContentError, LfsPointerError
from weight_readers_loader.resolve.formats import format_by_name, format_of, require_format

HEADS = {
    "safetensors": struct.pack("<Q", 64) + b'{"w":{"dtype":"F32"',
    "gguf": b"GGUF" + struct.pack("<IQQ", 3, 1, 1),
    "zip": b"PK\x03\x04\x00\x00\x08\x08" + bytes(22) + b"archive/data.pkl",
    "pickle": b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("model.safetensors", "safetensors"),
        ("MODEL.SAFETENSORS", "safetensors"),
        ("sub/m.gguf", "gguf"),
        ("pytorch_model.bin", "pt"),
        ("a.pt", "pt"),
        ("a.pth", "pt"),
        ("a.ckpt", "pt"),
        ("qwen2.5", None),
        ("config.json", None),
        ("0a1b2c3d", None),
        (".safetensors", None),
    ],
)
def test_the_suffix_claims_a_format(name: str, form: str | None) -> None:
    assert form == format_by_name(name)


@pytest.mark.parametrize("name", ["w.safetensors", "w.gguf", "w.bin", "w.pt", "w.pth", "w.ckpt", "blob"])
@pytest.mark.parametrize("content", ["safetensors", "gguf"])
def test_content_that_cannot_run_code_decides_under_every_name(name: str, content: str) -> None:
    verdict = format_of(name, HEADS[content])
    assert content == verdict.format == verdict.by_content
    assert (verdict.note is None) == (verdict.by_name in (None, content))


@pytest.mark.parametrize("content", ["zip", "pickle"])
@pytest.mark.parametrize("name", ["w.safetensors", "w.gguf"])
def test_a_pickle_under_another_formats_name_is_refused(name: str, content: str) -> None:
    verdict = format_of(name, HEADS[content])
    assert verdict.format is None
    with pytest.raises(ForeignContentError) as caught:
        require_format(verdict, path=name)
    assert str(format_by_name(name)) in str(caught.value.expected)
    assert "pt" in str(caught.value.found)


@pytest.mark.parametrize("content", ["zip", "pickle"])
@pytest.mark.parametrize("name", ["w.bin", "w.pt", "w.pth", "w.ckpt", "blob"])
def test_a_pickle_under_its_own_name_or_none_is_pt(name: str, content: str) -> None:
    assert format_of(name, HEADS[content]).format == "pt"


def test_a_disagreement_is_noted_with_both_sides() -> None:
    note = format_of("w.pt", HEADS["safetensors"]).note
    assert note == "w.pt is named as pt and its content is safetensors: read as safetensors"


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 8])
def test_a_safetensors_header_whose_length_looks_like_a_pickle_is_safetensors(length: int) -> None:
    head = struct.pack("<Q", length) + b'{"w":'
    assert format_of("blob", head).format == "safetensors"


def test_a_safetensors_header_with_an_absurd_length_is_still_safetensors() -> None:
    assert format_of("blob", b"\xff" * 8 + b'{"w":').format == "safetensors"


@pytest.mark.parametrize("head", [b"", b"\x00" * 64, b"<!DOCTYPE html><html>", b"hello"])
def test_content_of_no_known_format_leaves_it_to_the_name(head: bytes) -> None:
    assert format_of("w.safetensors", head).format == "safetensors"
    assert format_of("w.bin", head).format == "pt"
    assert format_of("blob", head).format is None


def test_neither_name_nor_content_known_is_an_error() -> None:
    with pytest.raises(ForeignContentError, match="not a weight file"):
        require_format(format_of("config.json", b'{"a": 1}'), path="config.json")


@pytest.mark.parametrize("name", ["w.safetensors", "w.bin", "w.gguf", "blob"])
def test_a_pointer_is_an_error_of_its_own_under_every_name(name: str) -> None:
    with pytest.raises(LfsPointerError, match="git lfs pull"):
        require_format(format_of(name, POINTER), path=name)
