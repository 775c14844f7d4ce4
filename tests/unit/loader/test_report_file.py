# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.files import write_sharded

from weight_readers_loader import LoadReport
from weight_readers_loader.cli import cli


def load(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["load", *map(str, arguments)])


def test_the_report_of_a_load_is_written_as_json(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out.json"
    write_sharded(model)
    assert load(model, "--report", out).exit_code == 0
    report = LoadReport.from_json(json.loads(out.read_text()))
    assert (report.reference, report.tensors, report.bytes_read) == (str(model), 2, 16)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.json"]


def test_an_older_report_is_replaced_and_a_link_to_it_stays_one(tmp_path: Path) -> None:
    write_sharded(tmp_path / "model")
    (tmp_path / "link.json").symlink_to("real.json")
    for older in ("", '{"version": 0, "reader": "x", "selection": {}}'):
        (tmp_path / "real.json").write_text(older)
        assert load(tmp_path / "model", "--report", tmp_path / "link.json").exit_code == 0
        assert (tmp_path / "link.json").is_symlink()
        assert json.loads((tmp_path / "real.json").read_text())["version"] == 1


def test_a_file_that_is_no_report_stays(tmp_path: Path) -> None:
    """The weights themselves, as a rule: one argument too many, or the wrong one first."""
    first, _ = write_sharded(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"version": 1}')
    (tmp_path / "notes.txt").write_text("mine")
    (index,) = (tmp_path / "model").glob("*.index.json")
    for path in (first, index, tmp_path / "model" / "config.json", tmp_path / "notes.txt"):
        before = Path(path).read_bytes()
        done = load(tmp_path / "model", "--report", path)
        assert (done.exit_code, Path(path).read_bytes()) == (2, before)
        assert f"cannot write {path}: it is there and is no report" in done.stderr


@pytest.mark.parametrize("place", ["nowhere/out.json", "folder", "pipe"])
def test_a_place_that_cannot_be_written_is_refused_before_the_checkpoint_is_looked_at(
    place: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    done = load(tmp_path / "no-model", "--report", tmp_path / place)
    assert done.exit_code == 2
    assert f"cannot write {tmp_path / place}" in done.stderr
    assert f".{Path(place).name}." not in done.stderr
    assert "no-model" not in done.stderr


@pytest.mark.parametrize("command", [("load", "--report", "nowhere/x.json"), ("inspect", "--plot", "nowhere/x.png")])
def test_a_missing_folder_is_what_the_message_names(command: tuple[str, str, str], tmp_path: Path) -> None:
    name, option, place = command
    done = CliRunner().invoke(cli, [name, str(tmp_path), option, str(tmp_path / place)])
    assert (done.exit_code, f"No such file or directory: '{tmp_path / 'nowhere'}'" in done.stderr) == (2, True)
    assert "Give a file in a folder that is there" in done.stderr


@pytest.mark.parametrize("command", [("load", "--report"), ("inspect", "--plot")])
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_said_to_be_none(command: tuple[str, str], name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, [command[0], str(tmp_path / "no-model"), command[1], name])
    said = f"cannot write {name!r}: " + ("that is no name of a file" if command[1] == "--report" else "pictures end in")
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_a_folder_that_takes_no_files_is_not_said_to_be_missing(tmp_path: Path) -> None:
    done = load(tmp_path / "no-model", "--report", "/proc/x.json")
    said = "cannot write /proc/x.json: no file can be made in the folder /proc. Give a file in a folder that is there"
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_folder_in_place_of_a_report_is_called_one(tmp_path: Path) -> None:
    done = load(tmp_path / "no-model", "--report", tmp_path)
    assert (done.exit_code, f"cannot write {tmp_path}: it is a folder." in done.stderr) == (2, True), done.stderr


def test_a_load_that_fails_leaves_the_older_report(tmp_path: Path) -> None:
    first, _ = write_sharded(tmp_path / "model")
    first.write_bytes(first.read_bytes()[:-1])
    older = '{"reader": "x", "selection": {}}'
    (tmp_path / "out.json").write_text(older)
    assert load(tmp_path / "model", "--report", tmp_path / "out.json").exit_code == 1
    assert (tmp_path / "out.json").read_text() == older
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.json"]
