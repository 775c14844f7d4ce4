# SPDX-License-Identifier: Apache-2.0
"""Ranges of an object of any format: every byte once, exact requests, and no silent wrong byte."""

from __future__ import annotations

import pytest
from support.object_server import ObjectServer
from support.tensors import noise

from weight_readers import CheckpointNotFoundError, FetchesRanges, FileChangedError, FileVersion, UnreadableFileError
from weight_readers_runai.reader import StreamerReader

MIB = 1 << 20
URI = "s3://models/m/m.gguf"
DATA = noise(20 * MIB)


@pytest.fixture
def reader(server: ObjectServer) -> StreamerReader:
    server.objects[URI.removeprefix("s3://")] = DATA
    return StreamerReader()


def fetched(reader: StreamerReader, *ranges: tuple[int, int], version: FileVersion | None = None) -> dict[int, int]:
    """Offset -> byte of everything that was given."""
    found: dict[int, int] = {}

    def write(offset: int, data: memoryview) -> None:
        assert len(data) <= 8 * MIB
        new = dict(enumerate(bytes(data), offset))
        assert not found.keys() & new.keys()
        found.update(new)

    reader.fetch(URI, ranges, write, version=version or reader.version(URI))
    return found


def test_the_version_is_size_and_etag(server: ObjectServer, reader: StreamerReader) -> None:
    assert isinstance(reader, FetchesRanges)
    assert FileVersion(nbytes=len(DATA), tag=server.etag("models/m/m.gguf")) == reader.version(URI)


def test_each_byte_of_the_ranges_comes_once_and_no_other_is_asked_for(
    server: ObjectServer, reader: StreamerReader
) -> None:
    ranges = [(3, 5), (MIB - 7, 100), (8 * MIB - 3, 6), (15 * MIB, 0), (19 * MIB, MIB)]
    expected = {offset + n: DATA[offset + n] for offset, length in ranges for n in range(length)}
    assert expected == fetched(reader, *ranges)
    assert server.sent_bytes() <= len(expected) + 16 * len(server.asked)


def test_a_short_answer_is_an_error_of_the_object(server: ObjectServer, reader: StreamerReader) -> None:
    version = reader.version(URI)
    server.fault = "short"
    with pytest.raises(UnreadableFileError, match=r"fewer bytes|does not serve the range") as caught:
        fetched(reader, (0, MIB), version=version)
    assert (caught.value.path, caught.value.tensor) == (URI, None)


def test_an_object_that_is_another_by_then_is_an_error(reader: StreamerReader) -> None:
    with pytest.raises(FileChangedError):
        fetched(reader, (0, 100), version=FileVersion(nbytes=len(DATA), tag='"other"'))


def test_an_object_that_is_not_there_is_not_found(reader: StreamerReader) -> None:
    with pytest.raises(CheckpointNotFoundError):
        reader.version("s3://models/none")
    with pytest.raises(CheckpointNotFoundError):
        reader.fetch("s3://models/none", [(0, 1)], lambda *_: None, version=FileVersion(nbytes=1, tag="x"))
