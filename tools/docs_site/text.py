# SPDX-License-Identifier: Apache-2.0
"""The text of a page: READMEs taken in, generated parts filled in, and links that lead out of docs/ resolved.

A page in docs/ is read in two places: as a file of the repository, where every link is a path, and on the site, which
has no other files than its own. So a line that is nothing but a link with the title "include" is, on the site, the
text that it leads to: a README, or the section of it that the anchor names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from docs_site.generated import PARTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_INCLUDE = re.compile(r'^\[[^\]]+\]\((?P<path>[^)#\s]+)(?:#(?P<anchor>[^)\s]+))? "include"\)$', re.MULTILINE)
_PART = re.compile(r"^<!-- generated: (?P<name>\w+) -->$", re.MULTILINE)
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<label>!?\[[^\]]*\])\((?P<path>[^):#\s]+)(?P<anchor>#[^)\s]*)?\)")
_DECISION = re.compile(r"`docs/decisions/(?P<number>\d{4})[\w-]*(?:\.md)?`")
_HEADING = re.compile(r"^(?P<level>#+) (?P<title>.+)$", re.MULTILINE)


def completed(markdown: str, uri: str) -> str:
    """The Markdown of the page at ``uri`` (below docs/) as the site has it.

    Raises ValueError for an include or a generated part that does not exist.
    """
    text = _INCLUDE.sub(lambda match: included(_target(f"docs/{uri}", match["path"]), match["anchor"], uri), markdown)
    text = _PART.sub(_part, text)
    return _outside_code(text, lambda prose: _linked(prose, f"docs/{uri}", uri))


def included(path: str, anchor: str | None, uri: str) -> str:
    """The file at ``path`` of the repository without its title, or its section, with links as ``uri`` needs them."""
    text = (ROOT / path).read_text(encoding="utf-8")
    text = _body(text) if anchor is None else _section(text, anchor, path)
    return _outside_code(text, lambda prose: _linked(prose, path, uri)).strip()


def includes(markdown: str, uri: str) -> list[tuple[str, str | None]]:
    """Which files of the repository, and which section of each, the page at ``uri`` takes in."""
    return [(_target(f"docs/{uri}", match["path"]), match["anchor"]) for match in _INCLUDE.finditer(markdown)]


def _part(match: re.Match[str]) -> str:
    if match["name"] not in PARTS:
        raise ValueError(f"nothing generates the part {match['name']!r} of a page; there are {sorted(PARTS)}")
    return PARTS[match["name"]]()


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if part.startswith("```") else change(part) for part in _FENCED.split(text))


def _body(text: str) -> str:
    title, _, body = text.partition("\n")
    return body if title.startswith("# ") else text


def _section(text: str, anchor: str, path: str) -> str:
    parts = _FENCED.split(text)
    hidden = "".join("\0" * len(part) if part.startswith("```") else part for part in parts)
    for match in _HEADING.finditer(hidden):
        if _slug(match["title"]) == anchor:
            after = (
                m.start() for m in _HEADING.finditer(hidden, match.end()) if len(m["level"]) <= len(match["level"])
            )
            return text[match.end() : next(after, len(text))]
    raise ValueError(f"{path} has no section #{anchor}")


def _slug(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def _linked(prose: str, path: str, uri: str) -> str:
    """``prose`` of the file at ``path``, with its links as the page at ``uri`` needs them."""

    def link(match: re.Match[str]) -> str:
        target = _target(path, match["path"])
        page = _page_of(target)
        if page is None:
            return f"{match['label'].strip('![]')} (`{target}`)"
        return f"{match['label']}({_relative(page, uri)}{match['anchor'] or ''})"

    def decision(match: re.Match[str]) -> str:
        (record,) = DOCS.glob(f"decisions/{match['number']}-*.md")
        return f"[decision {match['number']}]({_relative(f'decisions/{record.name}', uri)})"

    return _DECISION.sub(decision, _LINK.sub(link, prose))


def _target(path: str, link: str) -> str:
    """The file of the repository that ``link`` in the file at ``path`` leads to; of a folder its README."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if not (ROOT / target).exists():
        raise ValueError(f"{path} links to {target}, which does not exist")
    readme = f"{target}/README.md"
    return readme if (ROOT / readme).exists() else target


def _page_of(target: str) -> str | None:
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return _pages_with_readmes().get(target)


@cache
def _pages_with_readmes() -> dict[str, str]:
    found: dict[str, str] = {}
    for page in sorted(DOCS.rglob("*.md")):
        uri = page.relative_to(DOCS).as_posix()
        found |= {path: uri for path, anchor in includes(page.read_text(encoding="utf-8"), uri) if anchor is None}
    return found


def _relative(page: str, uri: str) -> str:
    return posixpath.relpath(page, posixpath.dirname(uri) or ".")
