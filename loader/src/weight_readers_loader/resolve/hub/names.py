# SPDX-License-Identifier: Apache-2.0
"""The names of repositories and of what lies in them, judged by their text alone.

owner/name  owner/name@revision  owner/name:Q4_K_M  owner/name[@revision]/folder/file.gguf
hf://[models/]owner/name[@revision][/path][:Q4_K_M]

Without ``hf://`` a revision may hold slashes (``owner/name@refs/pr/7``); with it, or before the path of a file, a
revision is ``refs/pr/N``, ``refs/convert/NAME`` or one part in which a slash is written ``%2F``, as huggingface_hub has
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from weight_readers_loader.resolve.index import why_unsafe

__all__ = ["SELECTOR", "HubName", "parse_short_name", "parse_url"]

SELECTOR = r"[\w.-]+"
"""What may stand behind the last colon of a reference: a quantization."""

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO = rf"(?P<repo>{_PART}/{_PART})"
_ONE_REVISION = r"@(?P<revision>refs/(?:pr|convert)/[^/:@]+|[^/:@]+)"
_URL = re.compile(rf"(?:models/)?{_REPO}(?:{_ONE_REVISION})?(?:/(?P<inner>[^:]*))?(?::(?P<selector>{SELECTOR}))?")
_SHORT = re.compile(rf"{_REPO}(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?(?::(?P<selector>{SELECTOR}))?")
_SHORT_FILE = re.compile(rf"{_REPO}(?:{_ONE_REVISION})?/(?P<inner>[^:@]+\.gguf)", re.IGNORECASE)
_LONGEST = 96
_OTHERS = re.compile(r"(datasets|spaces|kernels|buckets)/.+/")


@dataclass(frozen=True, kw_only=True)
class HubName:
    """``repo`` as ``owner/name``; ``inner`` a folder or file of it; None for what was not said."""

    repo: str
    revision: str | None = None
    inner: str | None = None
    selector: str | None = None

    @property
    def url(self) -> str:
        """The reference that says the same, with ``hf://``."""
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        inner = f"/{self.inner}" if self.inner else ""
        return f"hf://{self.repo}{revision}{inner}" + (f":{self.selector}" if self.selector else "")


def parse_short_name(text: str) -> HubName | None:
    """``owner/name`` and what may follow it; None for what has another form."""
    match = _SHORT_FILE.fullmatch(text) or _SHORT.fullmatch(text)
    if match is None or _why_no_repo(match["repo"]) is not None:
        return None
    name = _name(match.groupdict())
    return name if name.inner is None or why_unsafe(name.inner) is None else None


def parse_url(rest: str) -> HubName | str:
    """What follows ``hf://``; a text that says why it names no model."""
    if kind := _OTHERS.match(rest):
        return f"it leads to {kind[1]}, and only models are read"
    match = _URL.fullmatch(rest)
    if match is None:
        return "it does not have the form hf://owner/name[@revision][/path][:quantization]"
    name = _name(match.groupdict())
    reason = _why_no_repo(name.repo) or (why_unsafe(name.inner) if name.inner else None)
    return name if reason is None else reason


def _name(found: dict[str, str | None]) -> HubName:
    revision, inner = found.get("revision"), found.get("inner")
    return HubName(
        repo=found["repo"] or "",
        revision=unquote(revision) if revision else None,
        inner=(inner or "").rstrip("/") or None,
        selector=found.get("selector"),
    )


def _why_no_repo(repo: str) -> str | None:
    rules = (
        (len(repo) > _LONGEST, f"the repository's name is longer than {_LONGEST} characters"),
        ("--" in repo or ".." in repo, "the repository's name holds -- or .."),
        (repo.endswith(".git"), "the repository's name ends in .git"),
    )
    return next((reason for applies, reason in rules if applies), None)
