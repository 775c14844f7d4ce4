# SPDX-License-Identifier: Apache-2.0
"""The format of a weight file: what its name claims, what its first bytes are, and which of the two is believed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weight_readers.errors import ForeignContentError, LfsPointerError

__all__ = ["FORMATS", "HEAD_BYTES", "SUFFIXES", "FormatVerdict", "format_by_name", "format_of", "require_format"]

FORMATS = ("safetensors", "gguf", "pt")
"""The formats that are recognised, in the order in which a folder that holds several is read."""

SUFFIXES: Mapping[str, str] = MappingProxyType(
    {".safetensors": "safetensors", ".gguf": "gguf", ".bin": "pt", ".pt": "pt", ".pth": "pt", ".ckpt": "pt"}
)

HEAD_BYTES = 64
"""How many bytes of a file `format_of` wants to see."""

_POINTER = "git-lfs pointer"


@dataclass(frozen=True, kw_only=True)
class FormatVerdict:
    """What a file is taken for: ``format`` is None where it is not to be read at all.

    ``by_content`` is a name of `FORMATS`, ``"git-lfs pointer"``, or None for bytes that are none of these;
    ``note`` is set where name and content disagree.
    """

    format: str | None
    by_name: str | None
    by_content: str | None
    note: str | None = None


def format_by_name(name: str) -> str | None:
    """The format that the suffix of ``name`` claims, in either case of letters; None for any other suffix."""
    return SUFFIXES.get(os.path.splitext(name)[1].lower())


def format_of(name: str, head: bytes) -> FormatVerdict:
    """The format of a file from its name and its first `HEAD_BYTES` bytes. Content decides.

    With one exception: reading a pickle can run code, so bytes of the pt format count only under a name that
    claims them or claims nothing (``MakazhanAlpamys/Soup#189``, ``facebookresearch/sam3#599``).
    """
    by_name, by_content = format_by_name(name), _format_by_content(head)
    decided = _decide(by_name, by_content)
    note = None
    if by_name and by_content and by_name != by_content:
        note = f"{name} is named as {by_name} and its content is {by_content}"
        note += f": read as {decided}" if decided else ""
    return FormatVerdict(format=decided, by_name=by_name, by_content=by_content, note=note)


def _decide(by_name: str | None, by_content: str | None) -> str | None:
    if by_content == _POINTER or (by_content == "pt" and by_name not in (None, "pt")):
        return None
    return by_content or by_name


def _format_by_content(head: bytes) -> str | None:
    if head.startswith(b"GGUF"):
        return "gguf"
    if head.startswith(b"PK\x03\x04"):
        return "pt"
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return _POINTER
    # A safetensors header of 0x0280 bytes starts as a pickle of protocol 2 does; no pickle goes on with zeros.
    if head[8:9] == b"{" and head[4:8] == bytes(4):
        return "safetensors"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pt"
    return "safetensors" if head[8:9] == b"{" else None


def require_format(verdict: FormatVerdict, *, path: str) -> str:
    """The format of the file at ``path``.

    Raises LfsPointerError, and ForeignContentError for a pickle under another format's name and
    for bytes of no known format under a name of no known format.
    """
    if verdict.by_content == _POINTER:
        raise LfsPointerError(
            "a git-lfs pointer is here in place of the weights", path=path, fix="Run `git lfs pull` in its folder."
        )
    if verdict.format is not None:
        return verdict.format
    if verdict.by_content == "pt":
        raise ForeignContentError(
            "a pickle is loaded only from a file that is named as one",
            path=path,
            expected=f"{verdict.by_name}, as its name says",
            found="pt (a zip or pickle of torch.save)",
            fix="Get the right file; or rename this one to .pt if you trust where it comes from.",
        )
    raise ForeignContentError(
        "not a weight file: neither its name nor its content is of a known format",
        path=path,
        expected=" or ".join(SUFFIXES),
        found="other content",
        fix="Give the weight file, the index (*.safetensors.index.json), or the folder.",
    )
