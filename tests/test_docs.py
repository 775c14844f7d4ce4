# SPDX-License-Identifier: Apache-2.0
"""The page on writing a reader: its Python is run from top to bottom, and what it shows is what is printed."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

from weight_readers import ReadsInto, WeightReader
from weight_readers_testkit.subject import Subject

PAGE = (Path(__file__).parents[1] / "docs" / "writing-a-reader.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs_and_prints_what_is_shown(tmp_path: Path) -> None:
    source = "\n".join(blocks("python"))
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "".join(blocks("text")) == done.stdout


def test_the_signatures_of_the_page_are_those_of_the_protocols() -> None:
    text = " ".join(PAGE.split())
    for method in (WeightReader.iter_weights, ReadsInto.read_into):
        shown = re.search(rf"{method.__name__}\( ?(.*?)\)", text)
        assert shown is not None
        names = [part.strip().partition("=")[0] for part in shown[1].split(",")]
        declared = [name for name in inspect.signature(method).parameters if name != "self"]
        assert declared == [name for name in names if name not in ("self", "*")]


def test_every_attribute_of_the_kit_is_on_the_page() -> None:
    attributes = inspect.get_annotations(Subject)
    assert "bulk" in attributes
    assert [name for name in attributes if f"`{name}`" not in PAGE] == []
