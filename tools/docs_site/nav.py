# SPDX-License-Identifier: Apache-2.0
"""The navigation: ``folder/*`` stands for the pages there that no other entry names, ``*`` for those of no folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    named = {uri for uri in _uris(nav) if "*" not in uri}
    return _section(nav, docs, named)


def _section(entries: list[Any], docs: Path, named: set[str]) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            found.append({title: _section(below, docs, named) if isinstance(below, list) else below})
        elif "*" in entry:
            found += [uri for uri in _pages(docs, entry) if uri not in named]
        else:
            found.append(entry)
    return found


def _pages(docs: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(docs).as_posix() for path in docs.glob(f"{pattern}.md"))


def _uris(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for below in entry.values() if isinstance(entry, dict) else entry:
        yield from _uris(below)
