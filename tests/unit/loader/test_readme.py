# SPDX-License-Identifier: Apache-2.0
"""What the README of the loader shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commands import invoke

README = (Path(__file__).parents[3] / "loader" / "README.md").read_text()


def block(language: str) -> str:
    match = re.search(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert match is not None
    return match[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("python"), "README.md", "exec"), {})
    assert capsys.readouterr().out == block("text")


def test_the_commands_print_what_they_are_shown_to_print() -> None:
    exec(compile(block("python"), "README.md", "exec"), {})
    for session in block("console").split("$ weight-readers ")[1:]:
        command, _, printed = session.partition("\n")
        done = invoke(*command.split())
        assert (done.exit_code, done.stdout) == (0, printed)
