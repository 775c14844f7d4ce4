# SPDX-License-Identifier: Apache-2.0
"""Public reports about streaming readers and object storage: one test or group per report, named by its number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.commands import invoke
from support.files import entry, floats, write_safetensors, write_sharded, write_tensors
from support.measure import output_of
from support.object_server import ObjectServer, only_loopback
from support.tensors import noise

from weight_readers import (
    CheckpointError,
    CheckpointNotFoundError,
    FileChangedError,
    TensorLayoutError,
    UnreadableFileError,
)
from weight_readers_loader import open_checkpoint
from weight_readers_loader.resolve import resolve
from weight_readers_runai.reader import StreamerReader

URI = "s3://models/llama/model.safetensors"
KEY = URI.removeprefix("s3://")
KIB = 1 << 10


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer({}).running() as running:
        only_loopback(monkeypatch, running.endpoint)
        yield running


@pytest.fixture
def model(server: ObjectServer, tmp_path: Path) -> Path:
    """16 tensors of 512 KiB, each filled with its number."""
    size = 512 * KIB
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": ("U8", [size], bytes([n]) * size) for n in range(16)})
    server.objects[KEY] = path.read_bytes()
    return path


@pytest.mark.parametrize("where", ["local", "s3"])
def test_b102_tensors_kept_from_a_stream_keep_their_bytes(model: Path, where: str) -> None:
    kept = list(StreamerReader(memory_limit=512 * KIB).iter_weights([URI if where == "s3" else model]))
    assert [(f"t{n}", {n}) for n in range(16)] == [(name, set(values.tolist())) for name, values in kept]
    assert len({values.untyped_storage().data_ptr() for _, values in kept}) == 16


def test_b104_a_local_file_that_cannot_be_read_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    for name, kind in (("none.safetensors", CheckpointNotFoundError), ("folder.safetensors", CheckpointError)):
        with pytest.raises(kind) as caught:
            StreamerReader().read_meta([tmp_path / name])
        assert str(tmp_path / name) in str(caught.value)
        assert "File access error" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "fault", "said"),
    [
        ("s3://models/none.safetensors", None, "no such object"),
        ("s3://none/m.safetensors", None, "no such bucket"),
        (URI, "denied", "access denied"),
        (URI, "html", "does not serve the range"),
    ],
)
def test_b104_a_refusal_of_a_store_has_its_reason_and_the_settings_seen_but_no_value_of_a_secret(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch, uri: str, fault: str | None, said: str
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t-value")
    server.fault = fault
    with pytest.raises(CheckpointError, match=said) as caught:
        StreamerReader().read_meta([uri])
    text = str(caught.value)
    assert all(word in text for word in (uri, server.endpoint, "us-east-1 (AWS_REGION)", "AWS_SECRET_ACCESS_KEY"))
    assert "s3cr3t-value" not in text


def test_b105_the_deprecated_endpoint_reaches_listing_and_streaming_and_warns(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("RUNAI_STREAMER_S3_ENDPOINT", server.endpoint + "/")
    with pytest.warns(FutureWarning, match="Set AWS_ENDPOINT_URL instead"):
        assert len(open_checkpoint("s3://models/llama").state_dict()) == 16


def test_b105_of_two_endpoints_the_one_that_counts_serves_both_halves(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_S3_ENDPOINT", "http://127.0.0.1:1")
    assert len(open_checkpoint("s3://models/llama").state_dict()) == 16


def test_b105_an_endpoint_without_its_scheme_is_refused_by_name(model: Path) -> None:
    with pytest.raises(ValueError, match=r"'127.0.0.1:9'.*must be a URL that begins with http"):
        StreamerReader(endpoint="127.0.0.1:9").read_meta([URI])


@pytest.mark.parametrize("unsigned", [True, None])
def test_b107_unsigned_is_asked_for_and_never_guessed(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch, unsigned: bool | None
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    reader = StreamerReader(unsigned=unsigned)
    if unsigned:
        assert len(list(reader.iter_weights([URI]))) == 16
        assert not any(each.signed for each in server.asked)
    else:
        with pytest.raises(UnreadableFileError, match=r"no credentials.*unsigned=True"):
            reader.read_meta([URI])
        assert server.asked == []


BESIDE = (
    *("config.json", "generation_config.json", "params.json", "preprocessor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *(
        "tokenizer.model",
        "tekken.json",
        "vocab.txt",
        "vocab.json",
        "merges.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
    ),
    *("chat_template.jinja", "tool_use.jinja", "chat_template.json"),
    *("modeling_acme.py", "configuration_acme.py", "README.md", "LICENSE", "a file of tomorrow.xyz"),
)
NOT_BESIDE = ("pytorch_model.bin", "consolidated.00.pth", "model.gguf", "model.onnx")


def test_b109_whatever_is_no_weights_is_brought_and_the_rest_is_named(
    server: ObjectServer, model: Path, tmp_path: Path
) -> None:
    """By exclusion: no list of names that some model will not keep to."""
    held = {name: f"content of {name}".encode() for name in (*BESIDE, *NOT_BESIDE, "original/params.json")}
    server.objects |= {f"models/llama/{name}": data for name, data in held.items()}
    done = invoke("fetch", "s3://models/llama", tmp_path / "side", "--json", "--format", "safetensors")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert sorted(BESIDE) == sorted(said["written"])
    assert {*NOT_BESIDE, "model.safetensors", "original/"} == {each["name"] for each in said["left_out"]}
    assert {name: held[name] for name in BESIDE} == {
        path.name: path.read_bytes() for path in (tmp_path / "side").iterdir()
    }


ALONE = """
import sys, time
from pathlib import Path
import torch.distributed as dist
store, done, rank, path = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
if rank == 0:
    from weight_readers_loader import open_checkpoint
    print(len(open_checkpoint(path, reader="runai_streamer").state_dict()))
    done.touch()
else:
    deadline = time.monotonic() + 60
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    print(done.exists())
dist.destroy_process_group()
"""


def test_b110_one_rank_of_two_loads_alone_and_waits_for_nobody(model: Path, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        run = [pool.submit(output_of, ALONE, tmp_path / "store", tmp_path / "done", rank, URI) for rank in (0, 1)]
        assert [each.result(timeout=600) for each in run] == ["16", "True"]


@pytest.mark.parametrize("first", [1, 4])
def test_b114_a_gap_before_the_first_tensor_has_the_verdict_of_every_other_reader(
    server: ObjectServer, tmp_path: Path, first: int
) -> None:
    header = {"a": entry("F32", [1], first, first + 4)}
    path = write_safetensors(tmp_path / "m.safetensors", header, bytes(first) + floats(1))
    server.objects[KEY] = path.read_bytes()
    for file in (str(path), URI):
        with pytest.raises(TensorLayoutError) as caught:
            StreamerReader().read_meta([file])
        assert caught.value.path == file


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("memory_limit", 0, "from 1 to"),
        ("memory_limit", "abc", "whole number of bytes"),
        ("concurrency", 0, "from 1 to 1024 threads"),
        ("concurrency", -1, "from 1 to 1024 threads"),
        ("concurrency", "abc", "whole number of threads"),
    ],
)
def test_b116_an_option_out_of_range_is_refused_by_name_value_and_range(option: str, value: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        StreamerReader(**{option: value})
    assert f"option '{option}'" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["abc", "0", "-1", "1025"])
def test_b116_a_variable_of_the_library_out_of_range_is_refused_by_name_value_and_range(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", value)
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [1], b"a")})
    with pytest.raises(ValueError, match=f"RUNAI_STREAMER_CONCURRENCY must be .* 1 to 1024, not '{value}'"):
        next(StreamerReader().iter_weights([path]))
    assert len(list(StreamerReader(concurrency=2).iter_weights([path]))) == 1


def test_b116_what_the_library_alone_refuses_is_said_with_the_variables_that_are_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "abc")
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [1], b"a")})
    with pytest.raises(UnreadableFileError, match=r"refuses to read.*are set: RUNAI_STREAMER_CHUNK_BYTESIZE"):
        next(StreamerReader().iter_weights([path]))


def test_b116_a_limit_below_the_largest_tensor_names_it_and_what_it_takes(model: Path) -> None:
    with pytest.raises(ValueError, match=r"'memory_limit'.*at least 524288 bytes, what tensor 't\d+' of s3://"):
        next(StreamerReader(memory_limit=100).iter_weights([URI]))


@pytest.mark.parametrize("reference", ["s3://models/base", "s3://models/base/"])
def test_b117_a_prefix_is_a_folder_up_to_its_slash(server: ObjectServer, tmp_path: Path, reference: str) -> None:
    write_sharded(tmp_path / "sharded", 2)
    for path in (tmp_path / "sharded").iterdir():
        server.objects[f"models/base/{path.name}"] = path.read_bytes()
    server.objects |= {"models/base-old/model.safetensors": b"old", "models/base/": b"", "models/base": b"x"}
    names = [f"s3://models/base/model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert names == [file.path for file in resolve(reference).files]


@pytest.mark.parametrize("reference", ["s3://models/bas", "s3://models/bas/"])
def test_b117_no_objects_are_an_error(server: ObjectServer, reference: str) -> None:
    server.objects["models/base/model.safetensors"] = b"x"
    with pytest.raises(CheckpointNotFoundError, match="0 objects"):
        resolve(reference)


def test_b119_a_short_body_and_an_ignored_range_are_never_taken_as_data(server: ObjectServer, tmp_path: Path) -> None:
    data = noise(64 * KIB)
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": ("U8", [len(data)], data) for n in range(4)})
    server.objects[KEY] = path.read_bytes()
    for fault, said in (("short", "fewer bytes|serve the range"), ("ignore-range", "serve the range")):
        server.fault = None
        reader = StreamerReader()
        reader.read_meta([URI])
        server.fault = fault
        with pytest.raises(UnreadableFileError, match=said):
            list(reader.iter_weights([URI]))


@pytest.mark.parametrize("fault", ["cut-thrice", "busy-thrice"])
def test_b119_a_cut_or_refused_range_is_asked_for_again(server: ObjectServer, model: Path, fault: str) -> None:
    server.fault = fault
    got = {name: values.tolist() for name, values in StreamerReader().iter_weights([URI])}
    assert got == {name: values.tolist() for name, values in load_file(model).items()}


def test_b119_another_etag_on_the_second_request_is_an_error(server: ObjectServer, model: Path) -> None:
    server.fault = "other-etag"
    with pytest.raises(FileChangedError, match='ETag "other"'):
        StreamerReader().read_meta([URI])


def test_b119_a_dripping_body_is_given_up(server: ObjectServer, model: Path) -> None:
    server.fault = "drip"
    with pytest.raises(UnreadableFileError, match="did not answer within 1 seconds"):
        StreamerReader(timeout=1).read_meta([URI])


def test_b119_a_range_beyond_an_object_that_shrank_is_an_error(server: ObjectServer, model: Path) -> None:
    reader = StreamerReader()
    weights = reader.iter_weights([URI])
    server.objects[KEY] = server.objects[KEY][:100]
    with pytest.raises(FileChangedError):
        list(weights)
