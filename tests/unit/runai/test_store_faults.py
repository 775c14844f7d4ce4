# SPDX-License-Identifier: Apache-2.0
"""Whatever a store does before tensors stream: the right error in time. What it does then has a module of its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.files import write_tensors
from support.object_server import ObjectServer
from support.tensors import contents, noise

from weight_readers import CheckpointError, CheckpointNotFoundError, FileChangedError, UnreadableFileError
from weight_readers_runai.reader import StreamerReader

URI = "s3://models/llama/model.safetensors"
KEY = URI.removeprefix("s3://")
MIB = 1 << 20
TIMEOUT = 3.0
BEYOND = 20.0
"""Seconds beyond the timeout: for the client, which is made before, and for a busy machine."""

HEADER_FAULTS = {
    "short": (UnreadableFileError, "does not serve the range"),
    "short-unsaid": (UnreadableFileError, "fewer bytes than it was asked for"),
    "ignore-range": (UnreadableFileError, "does not serve the range"),
    "html": (UnreadableFileError, "found HTTP 200 text/html"),
    "cut": (UnreadableFileError, "the connection was cut before all bytes had come"),
    "busy": (UnreadableFileError, "the store failed"),
    "broken": (UnreadableFileError, "the store failed"),
    "drip": (UnreadableFileError, "did not answer within 3 seconds"),
    "never": (UnreadableFileError, "did not answer within 3 seconds"),
    "denied": (UnreadableFileError, "access denied"),
    "other-etag": (FileChangedError, "was changed while it was read"),
}


@pytest.fixture
def model(server: ObjectServer, tmp_path: Path) -> Path:
    tensors = {f"t{n}": ("U8", [MIB], noise(MIB, n)) for n in range(20)}
    path = write_tensors(tmp_path / "model.safetensors", tensors)
    server.objects[KEY] = path.read_bytes()
    return path


@pytest.mark.parametrize(("fault", "expected"), HEADER_FAULTS.items(), ids=HEADER_FAULTS)
def test_a_fault_in_the_header_has_its_class_and_its_words_in_time(
    server: ObjectServer, model: Path, fault: str, expected: tuple[type[CheckpointError], str]
) -> None:
    server.fault = fault
    _fails(StreamerReader(timeout=TIMEOUT), server, *expected)


def test_an_object_that_is_another_when_its_tensors_have_come_is_an_error(server: ObjectServer, model: Path) -> None:
    reader = StreamerReader(timeout=TIMEOUT)
    reader.read_meta([URI])
    server.fault = "other-etag"
    _fails(reader, server, FileChangedError, 'ETag "other"')


def _fails(reader: StreamerReader, server: ObjectServer, kind: type[CheckpointError], words: str) -> None:
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=words) as caught:
        list(reader.iter_weights([URI]))
    assert time.monotonic() - began < TIMEOUT + BEYOND
    assert (type(caught.value), caught.value.path) == (kind, URI)
    if kind is UnreadableFileError:
        said = str(caught.value)
        assert all(word in said for word in (server.endpoint, "us-east-1 (AWS_REGION)", "AWS_SECRET_ACCESS_KEY"))
        assert "secret" not in said.replace("secret key", "")


def test_a_store_that_hears_nothing_is_given_up_once_not_for_each_look(server: ObjectServer, model: Path) -> None:
    server.deaf = True
    _fails(StreamerReader(timeout=TIMEOUT), server, UnreadableFileError, "did not answer within 3 seconds")


def test_a_listing_that_does_not_come_is_given_up(server: ObjectServer, model: Path) -> None:
    server.deaf = True
    began = time.monotonic()
    with pytest.raises(UnreadableFileError, match="did not answer within 1 seconds"):
        StreamerReader(timeout=1).list_folder("s3://models/llama")
    assert time.monotonic() - began < 1 + BEYOND


@pytest.mark.parametrize("fault", ["cut-thrice", "busy-thrice"])
@pytest.mark.parametrize("stage", ["header", "data"])
def test_three_faults_in_a_row_are_gone_through(server: ObjectServer, model: Path, fault: str, stage: str) -> None:
    reader = StreamerReader()
    if stage == "data":
        reader.read_meta([URI])
    server.fault = fault
    assert contents(reader.iter_weights([URI])) == contents(reader.iter_weights([model]))
    assert server.times < 0, "all three befell"


@pytest.mark.parametrize("given", ["us-east-1", None])
def test_a_bucket_in_another_region_is_said_with_the_setting_that_finds_it(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """boto3 follows it there, the native client does not."""
    monkeypatch.delenv("AWS_REGION")
    server.region = "eu-west-1"
    with pytest.raises(UnreadableFileError, match="the bucket is in region 'eu-west-1'") as caught:
        list(StreamerReader(region=given).iter_weights([URI]))
    assert "AWS_REGION=eu-west-1" in str(caught.value)
    assert len(list(StreamerReader(region="eu-west-1").iter_weights([URI]))) == 20


def test_an_object_cut_off_or_gone_meanwhile_yields_no_wrong_tensor(server: ObjectServer, model: Path) -> None:
    sound = server.objects[KEY]
    for change, kind in ((lambda: sound[: 12 * MIB], FileChangedError), (lambda: None, CheckpointNotFoundError)):
        server.objects[KEY] = sound
        reader = StreamerReader()
        expected = contents(reader.iter_weights([model]))
        got: dict[str, object] = {}
        weights = reader.iter_weights([URI])
        reader.read_meta([URI])
        _replace(server, change())
        with pytest.raises(kind):
            got.update((name, contents([(name, values)])[name]) for name, values in weights)
        assert got == {name: expected[name] for name in got}


def _replace(server: ObjectServer, data: bytes | None) -> None:
    if data is None:
        del server.objects[KEY]
    else:
        server.objects[KEY] = data


def test_a_name_that_does_not_resolve_is_an_endpoint_that_cannot_be_reached(server: ObjectServer) -> None:
    with pytest.raises(UnreadableFileError, match="the endpoint cannot be reached") as caught:
        StreamerReader(endpoint="http://nowhere.invalid", timeout=TIMEOUT).read_meta([URI])
    assert "http://nowhere.invalid" in str(caught.value)


def test_https_where_http_is_spoken_cannot_be_reached(server: ObjectServer, model: Path) -> None:
    endpoint = server.endpoint.replace("http:", "https:")
    with pytest.raises(UnreadableFileError, match="the endpoint cannot be reached") as caught:
        StreamerReader(endpoint=endpoint, timeout=TIMEOUT).read_meta([URI])
    assert endpoint in str(caught.value)


def test_one_missing_among_good_ones_yields_no_tensor(server: ObjectServer, model: Path) -> None:
    with pytest.raises(CheckpointNotFoundError) as caught:
        next(StreamerReader().iter_weights([URI, "s3://models/llama/none.safetensors"]))
    assert caught.value.path == "s3://models/llama/none.safetensors"


def test_a_profile_that_is_not_there_is_said(server: ObjectServer, model: Path) -> None:
    with pytest.raises(UnreadableFileError, match=r"no credentials.*profile \(none\)"):
        StreamerReader(profile="none").read_meta([URI])


def test_objects_and_local_files_are_not_read_together(server: ObjectServer, model: Path) -> None:
    with pytest.raises(ValueError, match="one kind of place"):
        StreamerReader().read_meta([URI, str(model)])
