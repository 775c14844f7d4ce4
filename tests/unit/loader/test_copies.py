# SPDX-License-Identifier: Apache-2.0
"""Stored files that no reader reads in their store: copied as far as they are wanted, and read as local ones are."""

from __future__ import annotations

import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.object_server import ObjectServer, only_loopback
from support.tensors import contents, noise
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import (
    CheckpointError,
    FileChangedError,
    HeaderError,
    MissingShardError,
    TensorSlice,
    TruncatedFileError,
    UnreadableFileError,
)
from weight_readers_loader import open_checkpoint
from weight_readers_loader.cli import cli

MIB = 1 << 20
F32, Q8_0, I8 = 0, 8, 24
PAGE = 4096
URI = "s3://models/m/m.gguf"
KEY = URI.removeprefix("s3://")
TENSORS = {
    "fc.weight": (Q8_0, (256, 1024), np.ascontiguousarray(
        gguf.quantize(np.random.default_rng(0).standard_normal((256, 1024), dtype=np.float32),
                      gguf.GGMLQuantizationType.Q8_0)).tobytes()),
    **{f"big.{n}": (I8, (1024, 1024), noise(MIB, n)) for n in range(6)},
    "small": (F32, (3,), noise(12)),
}  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    monkeypatch.setenv("WEIGHT_READERS_CACHE_DIR", str(tmp_path / "cache"))
    with ObjectServer({}).running() as running:
        only_loopback(monkeypatch, running.endpoint)
        yield running


@pytest.fixture
def model(server: ObjectServer, tmp_path: Path) -> Path:
    """A file of more than 6 MiB, here and in the store."""
    path = write_gguf(tmp_path / "m.gguf", TENSORS, {"general.architecture": "tiny"})
    server.objects[KEY] = path.read_bytes()
    return path


def fetched(server: ObjectServer) -> int:
    """Bytes of the object that the server has sent since the last call."""
    sent = sum(each.sent for each in server.asked if each.span is not None and each.method == "GET")
    server.asked.clear()
    return sent


def test_a_stored_file_is_loaded_bit_for_bit_as_the_local_one(server: ObjectServer, model: Path) -> None:
    local, stored = open_checkpoint(model), open_checkpoint(URI)
    assert contents(local.iter_weights()) == contents(stored.iter_weights())
    assert [meta.file for meta in stored.tensors.values()] == [URI] * len(TENSORS)
    assert stored.state_dict().keys() == TENSORS.keys()
    assert stored.report is not None
    assert stored.report.reader == "gguf"


def test_numbers_are_computed_as_of_a_local_file_with_options_for_both_readers(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    stored = open_checkpoint(URI, dequantize="bf16", reader_options={"endpoint": server.endpoint})
    assert contents(open_checkpoint(model, dequantize="bf16").iter_weights()) == contents(stored.iter_weights())


def test_opening_reads_the_header_and_no_more_than_a_mib(server: ObjectServer, model: Path) -> None:
    assert len(open_checkpoint(URI).tensors) == len(TENSORS)
    assert fetched(server) <= MIB + 8192
    open_checkpoint(URI)
    assert fetched(server) <= 8192, "the header is in the cache"


@pytest.mark.parametrize("entries", [0, 200_000])
def test_a_header_of_any_length_is_read_without_the_tensors_behind_it(
    server: ObjectServer, tmp_path: Path, entries: int
) -> None:
    words = [f"token {n} of the vocabulary" for n in range(entries)]
    tensors = {f"big.{n}": (I8, (1024, 1024), noise(MIB, n)) for n in range(24)}
    path = write_gguf(tmp_path / "m.gguf", tensors, {"words": words} if words else {})
    header = path.stat().st_size - 24 * MIB
    server.objects[KEY] = path.read_bytes()
    assert open_checkpoint(path).tensors.keys() == open_checkpoint(URI).tensors.keys()
    assert fetched(server) <= max(MIB, 4 * header) + 8192


def test_a_filter_fetches_its_share_rounded_to_pages_and_once(server: ObjectServer, model: Path) -> None:
    stored = open_checkpoint(URI)
    fetched(server)
    for _ in range(2):
        ((name, values),) = stored.iter_weights(key_filter="big.3".__eq__)
        assert (name, TENSORS["big.3"][2]) == ("big.3", values.numpy().tobytes())
    assert MIB <= fetched(server) <= MIB + 2 * PAGE
    assert open_checkpoint(URI).get_tensor("big.3").numpy().tobytes() == TENSORS["big.3"][2]
    assert fetched(server) <= 8192, "what has arrived is kept"


@pytest.mark.parametrize(
    ("name", "part", "share"),
    [
        ("big.4", TensorSlice(dim=0, start=512, stop=640), MIB // 8),
        ("fc.weight", TensorSlice(dim=0, start=128, stop=256), 128 * 1024 * 34 // 32),
        ("big.4", TensorSlice(dim=1, start=10, stop=20), MIB),
    ],
)
@pytest.mark.parametrize("dequantize", [None, "float32"])
def test_a_slice_fetches_its_share(
    server: ObjectServer, model: Path, name: str, part: TensorSlice, share: int, dequantize: str | None
) -> None:
    stored, local = (open_checkpoint(each, dequantize=dequantize) for each in (URI, model))
    fetched(server)
    asked: dict[str, Any] = {"key_filter": name.__eq__, "slices": {name: part}}
    assert contents(local.iter_weights(**asked)) == contents(stored.iter_weights(**asked))
    assert fetched(server) <= share + 4 * PAGE


@pytest.mark.parametrize("dequantize", [None, "float32"])
def test_rows_and_columns_at_once_are_right(server: ObjectServer, model: Path, dequantize: str | None) -> None:
    part = (TensorSlice(dim=0, start=3, stop=9), TensorSlice(dim=1, start=32, stop=96))
    stored, local = (open_checkpoint(each, dequantize=dequantize) for each in (URI, model))
    for name in ("fc.weight", "big.2"):
        asked: dict[str, Any] = {"key_filter": name.__eq__, "slices": {name: part}}
        assert contents(local.iter_weights(**asked)) == contents(stored.iter_weights(**asked))


def test_columns_of_numbers_that_are_computed_are_right(server: ObjectServer, model: Path) -> None:
    asked: dict[str, Any] = {"slices": {"fc.weight": TensorSlice(dim=1, start=7, stop=45)}}
    stored, local = (open_checkpoint(each, dequantize="float32") for each in (URI, model))
    assert contents(local.iter_weights(**asked)) == contents(stored.iter_weights(**asked))


def test_two_iterations_at_once_do_not_wait_for_each_other(server: ObjectServer, model: Path) -> None:
    stored = open_checkpoint(URI)
    names = ("big.0", "big.1"), ("big.4", "big.5")
    one, two = (stored.iter_weights(key_filter=each.__contains__) for each in names)
    got = [next(one), next(two), next(one), next(two)]
    assert [(n, TENSORS[n][2]) for pair in zip(*names, strict=True) for n in pair] == [
        (name, values.numpy().tobytes()) for name, values in got
    ]
    one.close()
    two.close()


def test_several_that_load_at_once_fetch_the_file_once(server: ObjectServer, model: Path) -> None:
    found: list[dict[str, torch.Tensor]] = []
    threads = [threading.Thread(target=lambda: found.append(open_checkpoint(URI).state_dict())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [TENSORS["big.5"][2]] * 4 == [each["big.5"].numpy().tobytes() for each in found]
    assert fetched(server) <= model.stat().st_size + 4 * 8192


def test_tensors_outlive_the_copy(server: ObjectServer, model: Path, tmp_path: Path) -> None:
    weights = open_checkpoint(URI).state_dict()
    shutil.rmtree(tmp_path / "cache")
    assert weights["big.2"].numpy().tobytes() == TENSORS["big.2"][2]


@pytest.fixture
def split(server: ObjectServer, tmp_path: Path) -> Path:
    """A folder with a set of eleven files, here and in the store."""
    folder = tmp_path / "split"
    folder.mkdir()
    for number in range(11):
        about = {"split.no": ("UINT16", number), "split.count": ("UINT16", 11), "split.tensors.count": ("INT32", 11)}
        name = f"m-{number + 1:05d}-of-00011.gguf"
        path = write_gguf(folder / name, {f"{number}.t": (I8, (64, 64), noise(4096, number))}, about)
        server.objects[f"models/split/{name}"] = path.read_bytes()
    return folder


@pytest.mark.parametrize("reference", ["s3://models/split", "s3://models/split/m-00003-of-00011.gguf"])
def test_a_split_set_is_one_model_whichever_part_is_named(split: Path, reference: str) -> None:
    local, stored = open_checkpoint(split), open_checkpoint(reference)
    assert list(local.tensors) == list(stored.tensors)
    assert contents(local.iter_weights()) == contents(stored.iter_weights())


def test_a_part_that_is_not_there_is_named(server: ObjectServer, split: Path) -> None:
    del server.objects["models/split/m-00004-of-00011.gguf"]
    with pytest.raises(MissingShardError) as caught:
        open_checkpoint("s3://models/split")
    assert caught.value.path == "s3://models/split/m-00004-of-00011.gguf"


DAMAGED = {
    "cut in the tensors": (TruncatedFileError, lambda data: data[: 3 * MIB]),
    "cut in the header": (TruncatedFileError, lambda data: data[:100]),
    "another version": (HeaderError, lambda data: data[:4] + b"\x63" + data[5:]),
    "a length beyond the file": (
        TruncatedFileError,
        lambda data: data.replace(b"\4" + bytes(7) + b"tiny", b"\4\1\1\1\1\0\0\0tiny"),
    ),
    "a type out of range": (CheckpointError, lambda data: data.replace(b"general.architecture\x08", b"general.x" * 2)),
}


@pytest.mark.parametrize(("kind", "damage"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_has_the_verdict_of_a_local_one_and_is_not_fetched_for_it(
    server: ObjectServer, model: Path, tmp_path: Path, kind: type[CheckpointError], damage: Any
) -> None:
    model.write_bytes(damage(model.read_bytes()))
    server.objects[KEY] = model.read_bytes()
    said = []
    for reference in (str(model), URI):
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(reference)
        place = reference.rpartition("/")[0]
        said.append((type(caught.value), str(caught.value).replace(reference, "FILE").replace(place, "PLACE")))
    assert said[0] == said[1]
    assert issubclass(said[0][0], kind)
    assert fetched(server) <= MIB + 8192


def test_a_file_that_was_replaced_since_it_was_opened_is_an_error(server: ObjectServer, model: Path) -> None:
    stored = open_checkpoint(URI)
    server.objects[KEY] = server.objects[KEY][:-1] + b"\xff"
    with pytest.raises(FileChangedError) as caught:
        stored.state_dict()
    assert caught.value.path == URI
    assert open_checkpoint(URI).state_dict()["small"].numpy().tobytes()[-1:] != b""


def test_a_new_version_is_never_mixed_with_copies_of_the_old_one(server: ObjectServer, model: Path) -> None:
    open_checkpoint(URI).state_dict()
    tensors = {**TENSORS, "big.2": (I8, (1024, 1024), noise(MIB, "other"))}
    server.objects[KEY] = write_gguf(model, tensors, {"general.architecture": "tiny"}).read_bytes()
    assert contents(open_checkpoint(model).iter_weights()) == contents(open_checkpoint(URI).iter_weights())


def test_without_an_etag_nothing_is_kept_and_the_file_is_refused(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "etag", lambda key: "")
    with pytest.raises(UnreadableFileError, match="versions of the file") as caught:
        open_checkpoint(URI)
    assert caught.value.path == URI


def test_a_fetch_that_fails_keeps_nothing_wrong_and_can_be_repeated(server: ObjectServer, model: Path) -> None:
    stored = open_checkpoint(URI)
    server.fault, server.strikes = "short", lambda span: span[0] >= MIB
    with pytest.raises(UnreadableFileError, match="does not serve the range") as caught:
        stored.state_dict()
    assert caught.value.path == URI
    server.fault = None
    assert contents(open_checkpoint(model).iter_weights()) == contents(stored.iter_weights())


@pytest.mark.parametrize("record", [b'{"arrived": [[0, "x"]]}', b'{"arrived": [[0, 99999999999]]}'])
def test_a_record_that_nobody_here_wrote_counts_for_nothing(
    server: ObjectServer, model: Path, tmp_path: Path, record: bytes
) -> None:
    open_checkpoint(URI).state_dict()
    for path in (tmp_path / "cache").rglob("arrived.json"):
        path.write_bytes(record)
        path.with_name("m.gguf").write_bytes(bytes(100))
    assert contents(open_checkpoint(model).iter_weights()) == contents(open_checkpoint(URI).iter_weights())


def test_a_full_disk_is_said_before_anything_is_fetched(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("Usage", "total used free")(1, 1, MIB))
    with pytest.raises(UnreadableFileError, match="no room") as caught:
        open_checkpoint(URI)
    assert (caught.value.path, "--cache-dir" in str(caught.value)) == (URI, True)


def test_a_cache_folder_that_cannot_be_made_is_said(server: ObjectServer, model: Path) -> None:
    with pytest.raises(UnreadableFileError, match="cannot be kept") as caught:
        open_checkpoint(URI, cache_dir=model)
    assert (caught.value.path, str(model) in str(caught.value)) == (URI, True)


def test_an_option_that_neither_reader_has_is_refused(server: ObjectServer, model: Path) -> None:
    with pytest.raises(ValueError, match="turbo"):
        open_checkpoint(URI, reader_options={"turbo": 1})


def test_a_torch_file_is_fetched_whole(server: ObjectServer, tmp_path: Path) -> None:
    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    torch.save(weights, tmp_path / "m.pt")
    server.objects["models/pt/m.pt"] = (tmp_path / "m.pt").read_bytes()
    assert contents(weights.items()) == contents(sorted(open_checkpoint("s3://models/pt").iter_weights()))


@pytest.mark.parametrize("command", ["inspect", "explain", "verify"])
def test_the_commands_that_look_fetch_no_tensor(
    server: ObjectServer, model: Path, tmp_path: Path, command: str
) -> None:
    done = CliRunner().invoke(cli, [command, URI, "--cache-dir", str(tmp_path / "typed")])
    assert done.exit_code == 0, done.output
    assert fetched(server) <= MIB + 3 * 8192
    assert (tmp_path / "typed" / "objects").is_dir()
    assert str(tmp_path) not in done.output.replace(str(tmp_path / "typed"), "")
    if command == "explain":
        assert f"copies of what is read go to {tmp_path / 'typed'}" in done.output


def test_the_load_command_tells_of_the_bytes_as_they_arrive(server: ObjectServer, model: Path) -> None:
    done = CliRunner().invoke(cli, ["load", URI, "--progress"])
    assert done.exit_code == 0, done.output
    assert f"{len(TENSORS)} tensors" in done.stdout
    assert "100%" in done.stderr
