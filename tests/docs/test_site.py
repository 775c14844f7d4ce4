# SPDX-License-Identifier: Apache-2.0
"""The site is built strictly, from what is here and without the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weight_readers

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(https?:[^\"\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make setup installs it (requirements-docs.txt)")
    folder = tmp_path_factory.mktemp("site")
    # No network: what asks for one fails at once.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def page(site: Path, uri: str) -> str:
    return (site / uri).read_text(encoding="utf-8")


def test_every_page_is_built_and_reached_from_the_navigation(site: Path) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    assert {uri.replace("README.html", "index.html") for uri in sources} == built
    navigation = page(site, "index.html").partition("</nav>")[0] + page(site, "index.html")
    assert [uri for uri in built if f'href="{uri}"' not in navigation and uri != "index.html"] == []


def test_nothing_on_the_site_is_fetched_from_elsewhere(site: Path) -> None:
    assert [url for path in site.rglob("*.html") for url in FETCHED.findall(path.read_text(encoding="utf-8"))] == []


def test_the_table_of_readers_has_a_column_for_each_installed_reader_of_ours(site: Path) -> None:
    table = page(site, "choosing.html").partition("<table>")[2].partition("</thead>")[0]
    assert {f"<code>{name}</code>" for name in weight_readers.available_reader_names()} == set(
        re.findall(r"<code>\w+</code>", table)
    )


def test_the_command_line_page_has_the_help_of_each_command(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", page(site, "reference/cli.html"))
    for command in ("list", "explain", "inspect", "verify", "fetch", "load", "bench", "doctor", "new-plugin"):
        assert f"Usage: weight-readers {command} [OPTIONS]" in text


def test_the_reference_has_every_public_name_of_core(site: Path) -> None:
    text = page(site, "reference/core.html") + page(site, "reference/errors.html")
    headings = set(re.findall(r'id="weight_readers(?:\.\w+)*\.(\w+)"', text))
    assert set(weight_readers.__all__) - headings == set()


def test_a_readme_is_taken_in_with_its_links_as_the_site_has_them(site: Path) -> None:
    text = page(site, "readers/threaded.html")
    assert 'href="../decisions/0007-threaded-reader.html"' in text
    assert 'href="../reference/core.html"' in text
