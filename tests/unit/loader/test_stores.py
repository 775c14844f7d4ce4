# SPDX-License-Identifier: Apache-2.0
"""References to object storage: the same layouts as a folder's, listed and read through whichever reader can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.files import write_index, write_sharded
from support.object_server import ObjectServer, only_loopback

from weight_readers import CheckpointNotFoundError, MissingShardError, NoSuitableReaderError, Registry
from weight_readers_loader import open_checkpoint
from weight_readers_loader.cli import cli
from weight_readers_loader.resolve import resolve, scheme_of


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer({}).running() as running:
        only_loopback(monkeypatch, running.endpoint)
        yield running


@pytest.fixture
def model(server: ObjectServer, tmp_path: Path) -> Path:
    """A sharded checkpoint with an index and a config, here and at ``s3://models/llama``."""
    write_sharded(tmp_path, 2)
    (tmp_path / "config.json").write_text("{}")
    upload(server, tmp_path, "models/llama")
    return tmp_path


def upload(server: ObjectServer, folder: Path, prefix: str) -> None:
    for path in folder.iterdir():
        server.objects[f"{prefix}/{path.name}"] = path.read_bytes()


@pytest.mark.parametrize("reference", ["s3://models/llama", "s3://models/llama/"])
def test_a_folder_of_a_store_is_a_checkpoint_as_the_local_one_is(model: Path, reference: str) -> None:
    stored, local = open_checkpoint(reference), open_checkpoint(model)
    assert list(local.tensors) == list(stored.tensors)
    expected = {name: values.tolist() for name, values in local.state_dict().items()}
    assert expected == {name: values.tolist() for name, values in stored.state_dict().items()}
    assert stored.report is not None
    assert stored.report.selection.chosen == "runai_streamer"


def test_an_index_and_a_single_object_may_be_named(model: Path) -> None:
    index = resolve("s3://models/llama/model.safetensors.index.json")
    assert [file.path for file in index.files] == [
        f"s3://models/llama/model-0000{n}-of-00002.safetensors" for n in (1, 2)
    ]
    assert list(open_checkpoint("s3://models/llama/model-00001-of-00002.safetensors").tensors) == ["t1"]


def test_a_prefix_never_takes_in_another_that_begins_alike(server: ObjectServer, model: Path) -> None:
    server.objects["models/llama-old/model.safetensors"] = b"old"
    assert len(resolve("s3://models/llama").files) == 2


def test_nothing_under_a_prefix_is_an_error_with_the_close_name(model: Path) -> None:
    for reference in ("s3://models/lama", "s3://models/lama/"):
        with pytest.raises(CheckpointNotFoundError, match="0 objects") as caught:
            open_checkpoint(reference)
        assert (reference, "Did you mean 'llama'?") == (caught.value.path, caught.value.fix)


@pytest.fixture
def pipeline(server: ObjectServer, tmp_path: Path) -> str:
    """A model of two components, and a folder without weights."""
    write_sharded(tmp_path, 2)
    for component in ("transformer", "vae"):
        upload(server, tmp_path, f"models/flux/{component}")
    server.objects["models/flux/scheduler/config.json"] = b"{}"
    return "s3://models/flux"


def test_a_component_in_a_store_is_a_checkpoint(pipeline: str) -> None:
    checkpoint = open_checkpoint(pipeline, subfolder="vae")
    assert sorted(checkpoint.state_dict()) == ["t1", "t2"]
    assert checkpoint.layout.root == "s3://models/flux/vae"


def test_components_in_a_store_are_named_where_none_or_another_is_given(pipeline: str) -> None:
    for subfolder in (None, "unet"):
        with pytest.raises(CheckpointNotFoundError, match="transformer, vae"):
            open_checkpoint(pipeline, subfolder=subfolder)


def test_what_the_engine_was_asked_for_is_put_to_the_readers_of_the_store(model: Path) -> None:
    reference = "s3://models/llama/model-00001-of-00002.safetensors"
    assert list(open_checkpoint(reference, engine={"lora": True}).tensors) == ["t1"]


@pytest.mark.parametrize(
    ("reference", "scheme"),
    [("s3://models/llama", "s3"), ("models/llama", "file"), ("/models", "file"), ("hf://models/llama", "file")],
)
def test_the_scheme_is_that_of_a_store_or_file(reference: str, scheme: str) -> None:
    assert scheme == scheme_of(reference)


def test_a_missing_bucket_is_not_found(model: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no such bucket"):
        open_checkpoint("s3://none/llama")


def test_a_shard_that_the_index_names_and_the_store_lacks_is_missing(server: ObjectServer, model: Path) -> None:
    del server.objects["models/llama/model-00002-of-00002.safetensors"]
    with pytest.raises(MissingShardError) as caught:
        open_checkpoint("s3://models/llama")
    assert caught.value.path == "s3://models/llama/model-00002-of-00002.safetensors"


def test_an_index_that_leads_out_of_the_prefix_is_refused(server: ObjectServer, tmp_path: Path) -> None:
    write_index(tmp_path, {"t": "../other/model.safetensors"})
    upload(server, tmp_path, "models/llama")
    with pytest.raises(ValueError, match="other"):
        open_checkpoint("s3://models/llama")


def test_options_of_the_store_reach_the_listing_too(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    checkpoint = open_checkpoint("s3://models/llama", reader_options={"endpoint": server.endpoint})
    assert len(checkpoint.state_dict()) == 2


def test_explain_shows_where_the_store_is(server: ObjectServer, model: Path) -> None:
    done = CliRunner().invoke(cli, ["explain", "s3://models/llama"])
    assert done.exit_code == 0, done.output
    assert f"s3 endpoint: {server.endpoint} (AWS_ENDPOINT_URL)" in done.output
    assert "chosen: runai_streamer" in done.output


def test_without_a_reader_for_the_scheme_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weight_readers.default_registry", lambda: Registry(plugins={}, distributions=[]))
    with pytest.raises(NoSuitableReaderError, match=r"weight-readers-runai\[s3\]"):
        resolve("s3://models/llama")
