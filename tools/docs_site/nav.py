# SPDX-License-Identifier: Apache-2.0
"""The navigation: ``folder/*`` stands for the pages of the folder that no other entry names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    named = {uri for uri in _uris(nav) if not uri.endswith("/*")}
    return _section(nav, docs, named)


def _section(entries: list[Any], docs: Path, named: set[str]) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            found.append({title: _section(below, docs, named) if isinstance(below, list) else below})
        elif entry.endswith("/*"):
            found += [uri for uri in _pages(docs, entry.removesuffix("/*")) if uri not in named]
        else:
            found.append(entry)
    return found


def _pages(docs: Path, folder: str) -> list[str]:
    return sorted(str(path.relative_to(docs)) for path in (docs / folder).glob("*.md"))


def _uris(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for below in entry.values() if isinstance(entry, dict) else entry:
        yield from _uris(below)
