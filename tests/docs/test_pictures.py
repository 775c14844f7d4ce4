# SPDX-License-Identifier: Apache-2.0
"""The pictures of the site say what the command says: drawn anew, they have the same words."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from docs_site.pictures import draw
from support.blocks import normalised

ROOT = Path(__file__).parents[2]
COMMITTED = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
TEXT = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)


def words(picture: Path) -> list[str]:
    """In no order, since a figure of another length may wrap a cell; without the machine, ticks of axes and units."""
    lines = [html.unescape(line).replace("\xa0", " ") for line in TEXT.findall(picture.read_text(encoding="utf-8"))]
    said = " ".join(normalised(line) for line in lines if not line.startswith("machine:"))
    return sorted(word for word in said.split() if re.search(r"[a-z]", word))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("work"))
        draw(folder)
    return folder


@pytest.mark.parametrize("picture", COMMITTED, ids=lambda path: path.stem)
def test_a_picture_drawn_anew_has_the_same_words(picture: Path, drawn: Path) -> None:
    assert words(picture)
    assert words(picture) == words(drawn / picture.name)


def test_every_picture_is_drawn_and_shown_on_a_page(drawn: Path) -> None:
    assert {path.name for path in COMMITTED} == {path.name for path in drawn.iterdir()}
    pages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md"))
    assert [path.name for path in COMMITTED if f"pictures/{path.name}" not in pages] == []


def test_a_picture_fetches_nothing() -> None:
    for picture in COMMITTED:
        text = picture.read_text(encoding="utf-8")
        assert "@font-face" not in text
        assert re.search(r"(?:src|href)=\"http|url\(\"?http", text) is None
