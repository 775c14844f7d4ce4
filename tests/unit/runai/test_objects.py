# SPDX-License-Identifier: Apache-2.0
"""Object storage: the same verdicts and bytes as local files, exact requests, and no silent wrong tensor."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.files import entry, floats, write_safetensors, write_tensors
from support.object_server import Asked, ObjectServer
from support.tensors import contents, noise, tensor

import weight_readers
from weight_readers import (
    CheckpointError,
    CheckpointNotFoundError,
    DuplicateTensorError,
    EmptyFileError,
    FileChangedError,
    ForeignContentError,
    HeaderError,
    TensorSlice,
    TrailingBytesError,
    TruncatedFileError,
    UnreadableFileError,
)
from weight_readers_runai.reader import StreamerReader

MIB = 1 << 20
URI = "s3://models/llama/model.safetensors"
KEY = URI.removeprefix("s3://")


@pytest.fixture
def model(server: ObjectServer, tmp_path: Path) -> Path:
    """A file of many small tensors and some large ones, here and in the store."""
    small = {f"small.{n}": tensor("BF16", 3 + n % 7, seed=n) for n in range(200)}
    large = {f"large.{n}": ("U8", [1024, 3 * 1024], noise(3 * MIB, n)) for n in range(8)}
    path = write_tensors(tmp_path / "model.safetensors", {**small, **large})
    server.objects[KEY] = path.read_bytes()
    return path


def test_an_object_is_read_bit_for_bit_as_the_file(server: ObjectServer, model: Path) -> None:
    reader = StreamerReader()
    assert contents(reader.iter_weights([model])) == contents(reader.iter_weights([URI]))


def test_a_range_is_one_request_which_never_crosses_a_block_of_the_file(server: ObjectServer, model: Path) -> None:
    """What `guard` relies on: within a range no end of a body can hide."""
    list(StreamerReader().iter_weights([URI]))
    spans = [each.span for each in server.asked if each.span and each.span[0] > 0]
    assert all(begin // (8 * MIB) == (end - 1) // (8 * MIB) for begin, end in spans)
    starts = sorted(spans)
    assert all(one[1] == two[0] for one, two in pairwise(starts) if two[1] - two[0] > 16)
    assert len(spans) < 40, "200 small tensors are not asked for one by one"


def test_a_filter_and_a_slice_transfer_their_share_and_the_header(server: ObjectServer, model: Path) -> None:
    reader = StreamerReader()
    reader.read_meta([URI])
    header = server.sent_bytes()
    for options, share in (
        ({"key_filter": "large.3".__eq__}, 3 * MIB),
        (
            {"key_filter": "large.3".__eq__, "slices": {"large.3": TensorSlice(dim=0, start=128, stop=256)}},
            3 * MIB // 8,
        ),
    ):
        server.asked.clear()
        ((_, values),) = reader.iter_weights([URI], **options)  # type: ignore[arg-type]
        assert values.nbytes == share
        assert server.sent_bytes() <= share * 1.01
    assert header <= 64 << 10


def test_headers_read_twice_are_asked_for_once(server: ObjectServer, model: Path) -> None:
    reader = StreamerReader()
    reader.read_meta([URI])
    server.asked.clear()
    reader.read_meta([URI])
    assert {"HEAD"} == {each.method for each in server.asked}


SOUND = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}
BODY = floats(1, 2, 3, 4)
VERDICTS = {
    "empty": (EmptyFileError, lambda sound: b""),
    "four bytes": (TruncatedFileError, lambda sound: sound[:4]),
    "cut in the header": (TruncatedFileError, lambda sound: sound[:40]),
    "cut in the data": (TruncatedFileError, lambda sound: sound[:-1]),
    "trailing bytes": (TrailingBytesError, lambda sound: sound + bytes(100)),
    "a JSON file": (ForeignContentError, lambda sound: b'{"error": "not found"}'),
    "an error page": (ForeignContentError, lambda sound: b"<Error><Code>AccessDenied</Code></Error>"),
    "a name twice": (
        DuplicateTensorError,
        lambda sound: sound.replace(b'"b"', b'"a"'),
    ),
    "not JSON": (HeaderError, lambda sound: sound.replace(b"data_offsets", b'data"offsets')),
}


@pytest.mark.parametrize(("kind", "change"), VERDICTS.values(), ids=VERDICTS)
def test_a_broken_object_has_the_verdict_of_a_local_file(
    server: ObjectServer, tmp_path: Path, kind: type[CheckpointError], change: object
) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", SOUND, BODY)
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    server.objects[KEY] = path.read_bytes()
    said = []
    for file in (str(path), URI):
        with pytest.raises(CheckpointError) as caught:
            StreamerReader().read_meta([file])
        said.append((type(caught.value), str(caught.value).replace(file, "FILE")))
    assert said[0] == said[1]
    assert said[0][0] is kind


def test_a_missing_object_and_a_missing_bucket_are_not_found(server: ObjectServer, model: Path) -> None:
    for uri in ("s3://models/llama/none.safetensors", "s3://none/model.safetensors"):
        with pytest.raises(CheckpointNotFoundError) as caught:
            StreamerReader().read_meta([uri])
        assert (uri, True) == (caught.value.path, server.endpoint in str(caught.value))


@pytest.mark.parametrize("uri", ["s3://models", "s3://models/", "s3://models/llama/"])
def test_a_prefix_is_no_object(server: ObjectServer, model: Path, uri: str) -> None:
    with pytest.raises(UnreadableFileError, match="a prefix, not an object"):
        StreamerReader().read_meta([uri])


@pytest.mark.parametrize("key", ["a//b", "a///b", "/b", "a/./b", "a/../b"])
def test_a_key_by_which_the_native_client_finds_another_object_is_refused(server: ObjectServer, key: str) -> None:
    """It left out the empty part of ``a//b`` and read ``a/b``, without an error."""
    server.objects |= {f"models/{each}": b"x" for each in (key, "a/b", "b")}
    with pytest.raises(UnreadableFileError, match="the key has an empty part"):
        StreamerReader().read_meta([f"s3://models/{key}"])
    assert server.asked == []


@pytest.mark.parametrize("name", ["a b", "ü", "a+b", "50%", "%41", "q?x=1", "h#f", "a&b", "a;b", "back\\slash", "星"])
def test_an_odd_key_is_the_same_to_both_clients(server: ObjectServer, tmp_path: Path, name: str) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", SOUND, BODY)
    server.objects[f"models/{name}"] = path.read_bytes()
    weights = contents(StreamerReader().iter_weights([f"s3://models/{name}"]))
    assert weights == contents(StreamerReader().iter_weights([path]))
    assert {each.key for each in server.asked} == {f"models/{name}"}


@pytest.mark.parametrize("uri", ["s3://", "s3:///models"])
def test_a_uri_without_a_bucket_is_refused(server: ObjectServer, uri: str) -> None:
    with pytest.raises(UnreadableFileError, match="no bucket"):
        StreamerReader().list_folder(uri)


def test_denied_is_said_with_endpoint_region_and_the_variables_seen(server: ObjectServer, model: Path) -> None:
    server.fault = "denied"
    with pytest.raises(UnreadableFileError, match="access denied") as caught:
        StreamerReader().read_meta([URI])
    said = str(caught.value)
    assert all(
        word in said for word in (URI, server.endpoint, "us-east-1 (AWS_REGION)", "AWS_ACCESS_KEY_ID", "unsigned=True")
    )
    assert "secret" not in said.replace("SECRET", "")


def test_no_credentials_are_said_at_once(server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(UnreadableFileError, match="no credentials"):
        StreamerReader().read_meta([URI])


def test_unsigned_requests_carry_no_signature(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    reader = StreamerReader(unsigned=True)
    assert len(list(reader.iter_weights([URI]))) == 208
    assert {False} == {each.signed for each in server.asked}


def test_an_endpoint_where_nothing_listens_is_said(model: Path) -> None:
    began = time.monotonic()
    with pytest.raises(UnreadableFileError, match="cannot be reached") as caught:
        StreamerReader(endpoint="http://127.0.0.1:1", timeout=8).read_meta([URI])
    assert "http://127.0.0.1:1 (option" in str(caught.value)
    assert time.monotonic() - began < 8


def test_a_server_that_ignores_ranges_is_refused(server: ObjectServer, model: Path) -> None:
    server.fault = "ignore-range"
    with pytest.raises(UnreadableFileError, match="does not serve the range"):
        StreamerReader().read_meta([URI])


def _in_data(span: tuple[int, int]) -> bool:
    return span[0] > 0


@pytest.mark.parametrize("fault", ["short", "ignore-range", "denied"])
def test_a_fault_while_streaming_has_its_name_and_yields_no_wrong_tensor(
    server: ObjectServer, model: Path, fault: str
) -> None:
    reader = StreamerReader()
    expected = contents(reader.iter_weights([model]))
    reader.read_meta([URI])
    server.fault, server.strikes = fault, lambda span: span[0] > 4 * MIB
    got: dict[str, object] = {}
    with pytest.raises(UnreadableFileError) as caught:
        got.update((name, contents([(name, values)])[name]) for name, values in reader.iter_weights([URI]))
    assert got == {name: expected[name] for name in got}
    assert (caught.value.path, caught.value.tensor is not None) == (URI, True)
    if fault == "short":
        assert "does not serve the range" in str(caught.value)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 100])
def test_a_short_body_is_noticed_whatever_its_length(server: ObjectServer, tmp_path: Path, length: int) -> None:
    data = noise(length + 1)
    path = write_tensors(tmp_path / "m.safetensors", {"x": ("U8", [len(data)], data)})
    server.objects[KEY] = path.read_bytes()
    reader = StreamerReader()
    reader.read_meta([URI])
    server.fault, server.strikes = "short", _in_data
    with pytest.raises(UnreadableFileError, match="does not serve the range"):
        list(reader.iter_weights([URI]))


@pytest.mark.parametrize("last", range(256))
def test_no_content_is_taken_for_a_missing_end(last: int) -> None:
    import torch

    from weight_readers_runai import guard
    from weight_readers_runai.streamer import Target

    memory, again = torch.zeros(64, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)
    target = Target(0, 64, memory.data_ptr())
    guard.mark(target)
    memory[63] = last
    if guard.is_marked(target):
        memory[48:63] = 7
        end = guard.tail(target, again.data_ptr())
        guard.mark(end, again=True)
        again[:15], again[15] = 7, last
        assert not guard.is_marked(end, again=True)
        assert guard.same_bytes(target, end)


def test_a_busy_store_is_asked_again(server: ObjectServer, model: Path) -> None:
    reader = StreamerReader()
    reader.read_meta([URI])
    server.fault, server.strikes = "busy-thrice", _in_data
    assert contents(reader.iter_weights([URI])) == contents(reader.iter_weights([model]))


def test_an_object_that_changes_meanwhile_is_an_error(server: ObjectServer, model: Path) -> None:
    changed = bytearray(server.objects[KEY])
    changed[-1] ^= 1

    def change(asked: Asked) -> None:
        if asked.span and asked.span[0] > 8 * MIB:
            server.objects[KEY] = bytes(changed)

    server.before = change
    with pytest.raises(FileChangedError) as caught:
        list(StreamerReader().iter_weights([URI]))
    assert (caught.value.path, "ETag" in str(caught.value)) == (URI, True)


def test_the_environment_is_as_before_once_a_tensor_has_come(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.delenv("AWS_ENDPOINT_URL")
    before = dict(os.environ)
    weights = StreamerReader(endpoint=server.endpoint).iter_weights([URI])
    next(weights)
    assert before == dict(os.environ)
    weights.close()  # type: ignore[attr-defined]


def test_a_folder_is_listed_up_to_its_slash(server: ObjectServer) -> None:
    for key in ("models/llama/a", "models/llama/sub/b", "models/llama-old/c", "models/llama/"):
        server.objects[key] = b"x"
    reader = StreamerReader()
    for uri in ("s3://models/llama", "s3://models/llama/"):
        assert [(each.name, each.nbytes) for each in reader.list_folder(uri)] == [("sub", None), ("a", 1)]
    assert [each.path for each in reader.list_folder(uri)] == ["s3://models/llama/sub/", "s3://models/llama/a"]
    assert reader.list_folder("s3://models/none") == []
    assert {"llama", "llama-old"} == {each.name for each in reader.list_folder("s3://models")}


def test_core_picks_the_reader_for_the_scheme() -> None:
    reader = weight_readers.select_weight_reader(format="safetensors", schemes={"s3"})
    assert reader.info.name == "runai_streamer"
