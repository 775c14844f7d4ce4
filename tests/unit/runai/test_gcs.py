# SPDX-License-Identifier: Apache-2.0
"""``gs://`` from a server of Google's API on loopback: the same bytes, verdicts and errors as elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from support import gcs
from support.files import write_index, write_tensors
from support.tensors import contents, noise, write_shards
from support.wire import counted

from weight_readers import (
    CheckpointNotFoundError,
    FileChangedError,
    TensorSlice,
    TruncatedFileError,
    UnreadableFileError,
)
from weight_readers_loader import open_checkpoint
from weight_readers_runai.gcs_settings import resolve
from weight_readers_runai.reader import StreamerReader

pytest.importorskip("runai_model_streamer_gcs")
MIB = 1 << 20
URI = "gs://models/big/model.safetensors"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bucket ``models``: ``big`` (40 tensors of 1 MiB), ``llama`` (two shards, an index), ``llama-old``."""
    root = tmp_path_factory.mktemp("gs")
    tensors = {f"t{n}": ("U8", [1024, 1024], noise(MIB, n)) for n in range(40)}
    write_tensors(root / "models" / "big" / "model.safetensors", tensors)
    write_shards(root / "models" / "llama", 2)
    index = {f"s{s}.t{n}": f"model-{s}.safetensors" for s in (1, 2) for n in (0, 1)}
    write_index(root / "models" / "llama", index)
    write_shards(root / "models" / "llama-old", 1)
    broken = root / "models" / "broken" / "model.safetensors"
    broken.parent.mkdir()
    broken.write_bytes(next((root / "models" / "llama").glob("*.safetensors")).read_bytes()[:-1])
    return root


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[str]:
    with gcs.served(root) as endpoint:
        yield endpoint


@pytest.fixture
def endpoint(running: str, monkeypatch: pytest.MonkeyPatch) -> str:
    gcs.only_loopback(monkeypatch, running)
    return running


@pytest.fixture(scope="module")
def away() -> Iterator[ProcessPoolExecutor]:
    """A process for what streams from Google's: a process has one kind of store, and this one is S3's by now."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def streamed(endpoint: str, **asked: Any) -> dict[str, Any]:
    return contents(StreamerReader(endpoint=endpoint).iter_weights([URI], **asked))


def loaded(endpoint: str, reference: str) -> dict[str, Any]:
    os.environ["CLOUD_STORAGE_EMULATOR_ENDPOINT"] = endpoint
    return contents(open_checkpoint(reference).iter_weights())


def streamed_while_written_anew(endpoint: str, uri: str, data: bytes) -> None:
    weights = StreamerReader(endpoint=endpoint).iter_weights([uri])
    next(weights)
    gcs.upload(endpoint, "models", uri.removeprefix("gs://models/"), data)
    list(weights)


def test_tensors_filters_and_slices_are_as_from_disk(endpoint: str, root: Path, away: ProcessPoolExecutor) -> None:
    local = root / "models" / "big" / "model.safetensors"
    asked: dict[str, Any] = {"key_filter": "t7".__eq__, "slices": {"t7": TensorSlice(dim=1, start=128, stop=256)}}
    reader = StreamerReader()
    assert contents(reader.iter_weights([local])) == away.submit(streamed, endpoint).result(timeout=600)
    assert contents(reader.iter_weights([local], **asked)) == away.submit(streamed, endpoint, **asked).result(
        timeout=600
    )


def test_a_folder_is_a_checkpoint_and_takes_in_no_other(endpoint: str, root: Path, away: ProcessPoolExecutor) -> None:
    stored = away.submit(loaded, endpoint, "gs://models/llama").result(timeout=600)
    assert contents(open_checkpoint(root / "models" / "llama").iter_weights()) == stored
    assert [each.name for each in StreamerReader().list_folder("gs://models/llama")] == [
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
    ]
    assert {"big", "llama", "llama-old", "broken"} == {
        each.name for each in StreamerReader().list_folder("gs://models")
    }


def test_a_twentieth_of_the_tensors_costs_a_twentieth_of_the_bytes(endpoint: str, away: ProcessPoolExecutor) -> None:
    with counted(endpoint) as wire:
        StreamerReader(endpoint=wire.endpoint).read_meta([URI])
        header = wire.sent
        two = {"t3", "t30"}
        assert away.submit(streamed, wire.endpoint, key_filter=two.__contains__).result(timeout=600).keys() == two
        assert 2 * MIB <= wire.sent - 2 * header <= 2 * MIB * 101 // 100 + 8192


def test_a_broken_header_has_the_verdict_of_a_local_file(endpoint: str, root: Path) -> None:
    kinds = []
    for path in (root / "models" / "broken" / "model.safetensors", "gs://models/broken/model.safetensors"):
        with pytest.raises(TruncatedFileError) as caught:
            StreamerReader().read_meta([path])
        kinds.append((caught.value.what, caught.value.expected, caught.value.found))
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("uri", ["gs://models/none.safetensors", "gs://nobucket/m.safetensors"])
def test_what_is_not_there_is_said_with_the_endpoint(endpoint: str, uri: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="HTTP 404") as caught:
        StreamerReader().read_meta([uri])
    assert (uri, True) == (caught.value.path, endpoint in str(caught.value))


def test_an_endpoint_where_nothing_listens_is_said_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(UnreadableFileError, match="cannot be reached") as caught:
        StreamerReader(endpoint="http://127.0.0.1:1", timeout=4).read_meta([URI])
    assert "http://127.0.0.1:1 (option" in str(caught.value)
    assert time.monotonic() - began < 10


def test_no_credentials_are_said_with_the_command_that_gets_some(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs.only_loopback(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.delenv("CLOUD_STORAGE_EMULATOR_ENDPOINT")
    monkeypatch.setenv("RUNAI_STREAMER_GCS_CREDENTIAL_FILE", "/nonexistent/key.json")
    with pytest.raises(UnreadableFileError, match="no credentials") as caught:
        StreamerReader().read_meta([URI])
    assert "gcloud auth application-default login" in str(caught.value)


def test_an_object_that_is_written_anew_meanwhile_is_an_error(
    endpoint: str, tmp_path: Path, away: ProcessPoolExecutor
) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": ("U8", [8], noise(8, n)) for n in range(2)})
    gcs.upload(endpoint, "models", "changing/m.safetensors", path.read_bytes())
    uri = "gs://models/changing/m.safetensors"
    with pytest.raises(FileChangedError, match="generation"):
        away.submit(streamed_while_written_anew, endpoint, uri, path.read_bytes()).result(timeout=600)


def test_options_win_over_variables_and_origins_are_told(endpoint: str) -> None:
    place = StreamerReader(endpoint="http://127.0.0.1:9/").place(URI)
    assert place["endpoint"] == "http://127.0.0.1:9 (option of reader 'runai_streamer')"
    assert StreamerReader().place(URI)["endpoint"] == f"{endpoint} (CLOUD_STORAGE_EMULATOR_ENDPOINT)"


def test_an_emulator_is_asked_without_credentials_by_both_halves() -> None:
    settings = resolve(environ={"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"})
    assert (settings.unsigned, settings.endpoint) == (True, "http://127.0.0.1:9")
    assert settings.native() == {
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": "http://127.0.0.1:9",
        "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS": "true",
    }
    with pytest.raises(ValueError, match="sends no credentials"):
        resolve(endpoint="http://127.0.0.1:9", unsigned=False, environ={})


def test_googles_own_endpoint_is_signed_for_unless_told_otherwise() -> None:
    assert resolve(environ={}).unsigned is False
    told = resolve(environ={"RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS": "True"})
    assert (told.unsigned, "unsigned (RUNAI" in told.effective()["requests"]) == (True, True)
    assert resolve(unsigned=True, project="acme", environ={}).native() == {
        "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS": "true",
        "GOOGLE_CLOUD_CPP_USER_PROJECT": "acme",
    }
