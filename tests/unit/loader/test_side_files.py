# SPDX-License-Identifier: Apache-2.0
"""What lies beside the weights is taken to a folder; nothing there is lost, and what is not taken is named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.files import write_sharded, write_tensors
from support.object_server import ObjectServer, only_loopback
from support.tensors import tensor

from weight_readers import UnreadableFileError
from weight_readers_loader import open_checkpoint
from weight_readers_loader.cli import cli
from weight_readers_loader.side_files import MOST_BYTES

SIDE = {
    "config.json": b'{"a": 1}',
    "tokenizer.model": bytes(range(256)),
    "chat_template.jinja": b"{{ x }}",
    "none": b"",
}
OTHERS = {
    "model-00001-of-00002.safetensors": "weights",
    "model-00002-of-00002.safetensors": "weights",
    "model.safetensors.index.json": "an index of weights",
    "training_args.bin": "weights",
    "model.onnx": "weights of another framework",
    ".gitattributes": "a hidden file",
    "large.json": "64.0 MiB, and side files have at most 64.0 MiB",
    "onnx/": "a folder; its files are those of subfolder= (--subfolder)",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_sharded(folder, 2)
    for name, data in {**SIDE, "training_args.bin": b"x", "model.onnx": b"x", ".gitattributes": b"x"}.items():
        (folder / name).write_bytes(data)
    with (folder / "large.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_bytes(b"{}")
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer({}).running() as running:
        only_loopback(monkeypatch, running.endpoint)
        yield running


@pytest.fixture(params=["file", "s3"])
def reference(request: pytest.FixtureRequest, model: Path) -> str:
    if request.param == "file":
        return str(model)
    server: ObjectServer = request.getfixturevalue("server")
    for path in (path for path in model.rglob("*") if path.is_file()):
        server.objects[f"models/m/{path.relative_to(model).as_posix()}"] = path.read_bytes()
    return "s3://models/m"


def held(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_side_files_are_taken_whole_and_all_others_are_named(reference: str, tmp_path: Path) -> None:
    taken = open_checkpoint(reference).side_files().copy_to(tmp_path / "new" / "dest")
    assert held(tmp_path / "new" / "dest") == SIDE
    assert sorted(taken.written) == sorted(SIDE)
    assert dict(taken.left_out) == OTHERS


def test_nothing_in_the_folder_is_deleted_or_replaced_unless_asked(reference: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"mine")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_bytes(b"mine too")
    before = held(tmp_path)
    side_files = open_checkpoint(reference).side_files()
    taken = side_files.copy_to(tmp_path)
    assert held(tmp_path) == {**before, **SIDE, "config.json": b"mine"}
    assert dict(taken.left_out)["config.json"] == "it is there already; overwrite=True (--overwrite) replaces it"
    assert side_files.copy_to(tmp_path, overwrite=True).written == tuple(sorted(SIDE))
    assert held(tmp_path) == {**before, **SIDE}


def test_a_link_that_is_there_is_replaced_and_not_followed(model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "config.json").symlink_to(elsewhere)
    side_files = open_checkpoint(model).side_files()
    assert "config.json" in dict(side_files.copy_to(dest).left_out)
    side_files.copy_to(dest, overwrite=True)
    assert (elsewhere.read_bytes(), (dest / "config.json").read_bytes()) == (b"precious", SIDE["config.json"])


def test_a_name_that_leads_out_of_the_folder_is_left_out(server: ObjectServer, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "model.safetensors", {"a": tensor("U8", 1)})
    server.objects |= {"models/m/model.safetensors": path.read_bytes()}
    server.objects |= {f"models/m/{name}": b"evil" for name in ("..", "a\\b.json", "c:evil")}
    taken = open_checkpoint("s3://models/m").side_files().copy_to(tmp_path / "dest")
    assert taken.written == ()
    assert {name for name, _ in taken.left_out} >= {"..", "a\\b.json", "c:evil"}
    assert held(tmp_path) == {"model.safetensors": path.read_bytes()}


def test_a_file_that_cannot_be_read_is_named_with_the_reason(model: Path, tmp_path: Path) -> None:
    (model / "gone.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(model / "pipe.json")
    left = dict(open_checkpoint(model).side_files().left_out)
    assert ("nowhere" in left["gone.json"], left["pipe.json"]) == (True, "a FIFO")


def test_a_place_that_cannot_be_written_to_is_an_error(model: Path) -> None:
    with pytest.raises(UnreadableFileError, match="cannot be written") as caught:
        open_checkpoint(model).side_files().copy_to(model / "config.json")
    assert caught.value.path == str(model / "config.json")


def test_the_command_lists_what_it_wrote_and_left(reference: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["fetch", reference, str(tmp_path / "dest")])
    assert done.exit_code == 0, done.output
    assert f"{len(SIDE)} files written to {tmp_path / 'dest'}" in done.output
    assert "left out: model.onnx: weights of another framework" in done.output
    assert held(tmp_path / "dest") == SIDE
    again = CliRunner().invoke(cli, ["fetch", reference, str(tmp_path / "dest"), "--json"])
    data = json.loads(again.stdout)
    assert (data["ok"], data["written"], len(data["left_out"])) == (True, [], len(SIDE) + len(OTHERS))
