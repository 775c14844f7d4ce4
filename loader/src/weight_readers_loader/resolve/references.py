# SPDX-License-Identifier: Apache-2.0
"""What the user typed, taken apart.

The text alone is judged here. `places` looks at the disk; what leads to the Hub or to an object store is opened in
`hub` and `stores`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from weight_readers.errors import CheckpointNotFoundError
from weight_readers_loader.arguments import short
from weight_readers_loader.resolve.formats import format_by_name
from weight_readers_loader.resolve.hub.names import SELECTOR, HubName, parse_short_name, parse_url
from weight_readers_loader.resolve.listing import NAME_LIMIT

__all__ = ["GIVE", "Reference", "parse_reference"]

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_SELECTED = re.compile(rf"(?P<path>.+):(?P<selector>{SELECTOR})", re.DOTALL)
_HF = "Write hf://owner/name[@revision][/path][:quantization]."
GIVE = "Give a folder, an index file (*.safetensors.index.json), or a weight file."


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A reference taken apart. ``text`` is what was typed, ``path`` the local path it may be.

    ``kind`` is ``"local"`` (and ``reason`` says why it can be nothing else), ``"repo"`` (a local path of that text
    wins), or ``"url"`` (``scheme``). ``hub`` is set where it names a repository, or something in one; ``selector`` is
    what follows the last colon, where that may be a quantization.
    """

    text: str
    kind: Literal["local", "repo", "url"]
    path: str
    reason: str | None = None
    hub: HubName | None = None
    selector: str | None = None
    scheme: str | None = None

    @property
    def names_format(self) -> str | None:
        """The format that the text alone tells: by a suffix, or by a selector, which chooses among GGUF files."""
        by_name = format_by_name(self.hub.inner or "" if self.hub else self.text.strip())
        return "gguf" if by_name is None and self.selector and self.hub else by_name


def parse_reference(text: str | os.PathLike[str]) -> Reference:
    """Take a reference apart without any I/O.

    Raises TypeError for what is no text, CheckpointNotFoundError for a text that can name nothing.
    """
    path = os.fspath(text) if isinstance(text, os.PathLike) else text
    if not isinstance(path, str):
        raise TypeError(f"a reference is a str or an os.PathLike of str, not {short(repr(text))}")
    if (fault := _fault(path)) is not None:
        raise CheckpointNotFoundError(f"the reference {fault}", path=short(ascii(path)), fix=GIVE)
    _refuse_blanks(path)
    if not isinstance(text, str):
        return Reference(text=path, kind="local", path=path, reason="it was given as a path object")
    return _parse_url(path) or _parse_repo(path) or _parse_local(path)


def _fault(path: str) -> str | None:
    """Why ``path`` can name nothing on any disk."""
    if not path.strip():
        return "is empty"
    if "\0" in path:
        return "holds a NUL character"
    if len(path) > NAME_LIMIT:
        return f"is longer than {NAME_LIMIT} characters"
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return None


def _refuse_blanks(text: str) -> None:
    """Raises CheckpointNotFoundError for a URL with a blank at an end: dropping it would be a guess."""
    meant = text.strip()
    if meant != text and _SCHEME.fullmatch(meant):
        what = "the reference begins or ends with a blank"
        raise CheckpointNotFoundError(what, path=short(repr(text)), fix=f"Did you mean {short(repr(meant))}?")


def _parse_url(text: str) -> Reference | None:
    match = _SCHEME.fullmatch(text)
    if match is None:
        return None
    scheme = match["scheme"].lower()
    if scheme != "hf":
        return Reference(text=text, kind="url", path=text, scheme=scheme, selector=_selector(text))
    found = parse_url(match["rest"])
    if isinstance(found, str):
        raise CheckpointNotFoundError(f"the reference names no model on the Hub: {found}", path=short(text), fix=_HF)
    return Reference(text=text, kind="url", path=text, scheme=scheme, hub=found, selector=found.selector)


def _parse_repo(text: str) -> Reference | None:
    found = parse_short_name(text)
    if found is None or (found.inner is None and _why_local_only(text) is not None) or text[0] in "/.~":
        return None
    return Reference(text=text, kind="repo", path=text, hub=found, selector=found.selector)


def _parse_local(text: str) -> Reference:
    form = "it does not have the form owner/name"
    reason = _why_local_only(text.strip()) or (form if text == text.strip() else "it begins or ends with a blank")
    return Reference(text=text, kind="local", path=text, reason=reason, selector=_selector(text))


def _selector(text: str) -> str | None:
    match = _SELECTED.fullmatch(text)
    return match["selector"] if match else None


def _why_local_only(text: str) -> str | None:
    """Why ``text`` can be no repo id (vllm-project/vllm#33545). A dot proves nothing: ``Qwen/Qwen2.5-0.5B``."""
    before_revision = text.partition("@")[0]
    if text[0] in "/.~":
        return f"it starts with {text[0]!r}"
    if "\\" in text:
        return "it holds a backslash"
    if format_by_name(text) is not None or text.endswith(".json"):
        return f"it ends in {os.path.splitext(text)[1]!r} as a file does"
    if before_revision.count("/") > 1:
        return "it has more than one slash"
    return None
