# SPDX-License-Identifier: Apache-2.0
"""The code of the site's own pages is run, and prints what the page shows. READMEs have tests of their own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import commands, rclone
from support.blocks import blocks, normalised, run
from support.files import floats, write_tensors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {
    "configuration.md": "tests/unit/loader/config/test_model.py",
    "troubleshooting.md": "tests/unit/loader/test_troubleshooting.py",
    "writing-a-reader.md": "tests/test_docs.py",
}
"""Pages that a test of their own runs."""

STORED = "stores.md"
PAGES = {
    path.relative_to(DOCS).as_posix(): blocks(path)
    for path in sorted(DOCS.rglob("*.md"))
    if blocks(path) and path.parent.name != "engines" and path.relative_to(DOCS).as_posix() not in ELSEWHERE
}
REQUIREMENT = re.compile(r'"(?P<name>[\w-]+)\[(?P<extras>[\w,]+)\]"')


def in_process(words: list[str]) -> str:
    assert words[0] == "weight-readers"
    done = commands.invoke(*words[1:])
    assert done.exit_code == 0, done.stderr
    printed: str = done.stdout
    return printed


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the page on object storage reads, in a real server on loopback, and the variables that lead there."""
    tensors = {"weight": ("F32", [2, 3], floats(*range(6))), "bias": ("F32", [2], floats(0, 0))}
    write_tensors(tmp_path / "models" / "tiny" / "model.safetensors", tensors)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", rclone.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", rclone.SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with rclone.served(tmp_path) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield


@pytest.mark.parametrize("page", [page for page in PAGES if page != STORED])
def test_a_page_prints_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for code, shown, printed in run(PAGES[page], in_process):
        assert normalised(shown) == normalised(printed), code


@pytest.mark.usefixtures("store")
def test_the_page_on_object_storage_prints_what_it_shows() -> None:
    for code, shown, printed in run(PAGES[STORED], in_process):
        assert shown == printed, code


def test_no_page_has_code_that_no_test_runs() -> None:
    kinds = {(page, block.kind) for page, listed in PAGES.items() for block in listed}
    assert {kind for _, kind in kinds} <= {"python", "text", "console", "sh"}
    assert {page for page, kind in kinds if kind == "text"} <= {page for page, kind in kinds if kind == "python"}
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text(encoding="utf-8")


def projects() -> dict[str, Any]:
    paths = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("[a-z]*/*/pyproject.toml")]
    found = [tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in paths]
    return {project["name"]: project for project in found}


def test_what_pages_install_exists_and_what_they_make_is_a_target() -> None:
    known, targets = (
        projects(),
        re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE),
    )
    lines = [
        line for listed in PAGES.values() for block in listed if block.kind == "sh" for line in block.text.splitlines()
    ]
    assert lines
    for line in lines:
        if line.startswith("make "):
            assert line.removeprefix("make ") in targets
            continue
        assert line.startswith("pip install ")
        for match in REQUIREMENT.finditer(line):
            assert set(match["extras"].split(",")) <= set(known[match["name"]]["optional-dependencies"]), line
