# SPDX-License-Identifier: Apache-2.0
"""``weight-readers new-plugin``: what it writes, and what it refuses to."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import weight_readers
from weight_readers import Registry
from weight_readers_loader.cli import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_writes_a_project_whose_entry_point_is_the_reader(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["new-plugin", "my_format"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "my-format-reader"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "my-format-reader"
    assert project["entry-points"]["weight_readers"] == {"my_format": "my_format_reader.plugin"}
    assert 'next: pip install -e "my-format-reader[test]" && pytest my-format-reader' in done.output


def test_every_file_is_complete_python_with_no_place_left_to_fill(tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["new-plugin", "my_format", "--folder", "here"])
    written = [path for path in (tmp_path / "here").rglob("*") if path.is_file()]
    assert len(written) == 7
    for path in written:
        assert "$" not in path.read_text()
        if path.suffix == ".py":
            ast.parse(path.read_text())


def test_the_files_are_listed_as_json() -> None:
    done = CliRunner().invoke(cli, ["new-plugin", "acme", "--json"])
    assert "acme-reader/pyproject.toml" in json.loads(done.output)["written"]


@pytest.mark.parametrize("name", ["", "Acme", "9lives", "a-b", "a b", "../up", "x" * 31, "ä"])
def test_a_name_that_no_reader_can_have_is_refused(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["new-plugin", name])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "lower-case letters" in done.output


@pytest.mark.parametrize("name", ["safetensors", "gguf"])
def test_a_name_that_is_taken_is_refused(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["new-plugin", name])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert f"there is a reader called {name!r} already" in done.output


def test_the_name_of_a_reader_of_this_project_that_is_not_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Registry(distributions=())
    assert nothing.available_reader_names() == []
    monkeypatch.setattr(weight_readers, "default_registry", lambda: nothing)
    done = CliRunner().invoke(cli, ["new-plugin", "gguf"])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])


def test_a_name_whose_files_are_of_another_format_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["new-plugin", "bin"])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "files called .bin are of the format 'pt' already" in done.output


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "acme-reader").mkdir()
    done = CliRunner().invoke(cli, ["new-plugin", "acme"])
    assert done.exit_code == 1
    assert "cannot make the folder acme-reader" in done.output
    assert list((tmp_path / "acme-reader").iterdir()) == []
