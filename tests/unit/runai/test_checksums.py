# SPDX-License-Identifier: Apache-2.0
"""Checksums that a store keeps: which are of the whole object, and what the bytes that arrive come to."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.files import write_tensors
from support.object_server import Asked, ObjectServer
from support.tensors import noise

from weight_readers import FileChangedError
from weight_readers_loader.cli import cli
from weight_readers_runai.checksums import hasher, stored
from weight_readers_runai.reader import StreamerReader

URI = "s3://models/llama/model.safetensors"
KEY = URI.removeprefix("s3://")
MIB = 1 << 20


@pytest.fixture
def content(server: ObjectServer, tmp_path: Path) -> bytes:
    tensors = {f"t{n}": ("U8", [MIB], noise(MIB, n)) for n in range(20)}
    server.objects[KEY] = write_tensors(tmp_path / "m.safetensors", tensors).read_bytes()
    return server.objects[KEY]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("crc32", "cbf43926"), ("crc32c", "e3069283"), ("crc64nvme", "ae8b14860a799888")],
)
def test_the_check_values_of_the_catalogue_of_crcs(algorithm: str, expected: str) -> None:
    found = hasher(algorithm)
    for piece in (b"1234", b"56789"):
        found.update(piece)
    assert expected == found.hexdigest()


@pytest.mark.parametrize(
    ("answer", "algorithm", "words"),
    [
        ({"ChecksumCRC32": "y/Q5Jg=="}, "crc32", "ChecksumCRC32"),
        ({"ChecksumCRC32": "y/Q5Jg==", "ChecksumType": "FULL_OBJECT", "ETag": '"ab-2"'}, "crc32", "ChecksumCRC32"),
        ({"ChecksumCRC32": "y/Q5Jg==-2", "ChecksumType": "COMPOSITE"}, None, "not of the whole"),
        ({"ChecksumCRC32": "y/Q5Jg==-2"}, None, "not of the whole"),
        ({"ChecksumCRC32": "y/Q5Jg==", "ETag": '"ab-2"'}, None, "not of the whole"),
        ({"ETag": '"900150983cd24fb0d6963f7d28e17f72"'}, None, "keeps no checksum"),
    ],
)
def test_only_a_checksum_of_the_whole_is_compared(answer: dict[str, Any], algorithm: str | None, words: str) -> None:
    found = stored(answer)
    assert (algorithm, words in found.remark) == (found.algorithm, True)
    assert ("cbf43926" if algorithm else None) == found.value


def test_a_checksum_that_cannot_be_computed_here_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = stored({"ChecksumCRC64NVME": "rosUhgp5mIg="})
    assert (found.value, 'pip install "weight-readers-runai[s3]"' in found.remark) == (None, True)


def test_bytes_are_hashed_as_they_arrive_in_order_and_each_once(server: ObjectServer, content: bytes) -> None:
    seen: list[int] = []
    assert hashlib.sha256(content).hexdigest() == StreamerReader().digest(URI, "sha256", on_bytes=seen.append)
    assert sum(seen) == len(content) == server.sent_bytes()


@pytest.mark.parametrize("kept", [True, False])
def test_a_flipped_bit_that_a_load_does_not_see_is_found_by_verify(
    server: ObjectServer, content: bytes, kept: bool
) -> None:
    if kept:
        right = base64.b64encode(hashlib.sha256(content).digest()).decode()
        server.checksums[KEY] = {"x-amz-checksum-sha256": right, "x-amz-checksum-type": "FULL_OBJECT"}
    server.objects[KEY] = content[:-1] + bytes([content[-1] ^ 1])
    assert len(list(StreamerReader().iter_weights([URI]))) == 20
    done = CliRunner().invoke(cli, ["verify", URI, "--sha256"])
    said = "the content is not what it should be" if kept else "the store keeps no checksum of it"
    assert (done.exit_code, said in done.stderr) == (1, True)


def test_an_object_that_changes_while_it_is_hashed_is_an_error(server: ObjectServer, content: bytes) -> None:
    def change(asked: Asked) -> None:
        if asked.span and asked.span[0] >= 8 * MIB:
            server.objects[KEY] = bytes(len(content))

    server.before = change
    with pytest.raises(FileChangedError):
        StreamerReader().digest(URI, "sha256")


def test_an_algorithm_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no digest 'md4'"):
        hasher("md4")
