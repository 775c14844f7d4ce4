# SPDX-License-Identifier: Apache-2.0
"""What a file that is no GGUF file is instead, told by its first bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from weight_readers.errors import CheckpointError, EmptyFileError, ForeignContentError, LfsPointerError

MAGIC = b"GGUF"
HEAD_BYTES = 4096
"""How many of the first bytes `foreign_content` wants."""
DOWNLOAD_AGAIN = "Delete the file and download it again (an interrupted download, or a full disk)"

_POINTER = b"version https://git-lfs"
_SAVED = "was saved in its place; download the file again"
_PT = 'Rename it to .pt, and install the reader: pip install "weight-readers[pt]"'
_SAFETENSORS = 'Rename it to .safetensors, and install the reader: pip install "weight-readers[mmap]"'


class _Content(NamedTuple):
    """A kind of content: what to call it, what its owner can do, and how to tell it."""

    name: str
    fix: str
    matches: Callable[[bytes], bool]


def _starts(*prefixes: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(prefixes)


def _text_starts(*prefixes: bytes) -> Callable[[bytes], bool]:
    def matches(head: bytes) -> bool:
        return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:32].lower().startswith(prefixes)

    return matches


def _is_safetensors(head: bytes) -> bool:
    return int.from_bytes(head[:8], "little") <= 100_000_000 and head[8:9] == b"{"


_CONTENTS = (
    _Content("a safetensors file", _SAFETENSORS, _is_safetensors),
    # The magic words of 2023 are numbers, which reads them backwards on disk.
    _Content("a GGML file of the time before GGUF", "Get the model as GGUF; it cannot be read any more",
             _starts(b"lmgg", b"fmgg", b"tjgg", b"algg")),
    _Content("a torch checkpoint or another zip archive", _PT, _starts(b"PK\x03\x04", b"PK\x05\x06")),
    _Content("a pickle (an old torch checkpoint)", _PT, _starts(b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")),
    _Content("a compressed archive", "Unpack it first",
             _starts(b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh")),
    _Content("an HTML page", f"A web page {_SAVED}",
             _text_starts(b"<!doctype html", b"<html", b"<head", b"<body")),
    _Content("an XML document", f"A server's error {_SAVED}", _text_starts(b"<")),
    _Content("JSON text", f"A config or a server's error message {_SAVED}", _text_starts(b"{", b"[")),
    _Content("nothing but zero bytes at its start", f"A download reserved the space and never filled it. "
             f"{DOWNLOAD_AGAIN}", lambda head: not any(head)),
)  # fmt: skip


def foreign_content(path: str, head: bytes) -> CheckpointError | None:
    """The error for a file whose first bytes are ``head`` and are not those of a GGUF file, else None.

    `EmptyFileError`, `LfsPointerError` with the oid and size it stands for, or `ForeignContentError` that says
    what the content is.
    """
    if not head:
        return EmptyFileError("empty file (0 bytes)", path=path, fix="Download the file again")
    # A file cut within its magic is reported as cut.
    if head[: len(MAGIC)] == MAGIC[: len(head)]:
        return None
    if head.startswith(_POINTER):
        return _pointer_error(path, head)
    found = next((each for each in _CONTENTS if each.matches(head)), None)
    return ForeignContentError(
        f"{_claim(path)}, and the content is {found.name if found else 'something else'}",
        path=path,
        expected=f"the first bytes {MAGIC!r}",
        found=repr(head[:4]),
        fix=found.fix if found else "Give a GGUF file, or download this one again",
    )


def _claim(path: str) -> str:
    suffix = os.path.splitext(path)[1]
    return f"the name says {suffix}" if suffix else "read as GGUF"


def _pointer_error(path: str, head: bytes) -> LfsPointerError:
    oid = re.search(rb"^oid (\S{1,128})\r?$", head, re.MULTILINE)
    size = re.search(rb"^size ([0-9]{1,20})\r?$", head, re.MULTILINE)
    stands_for = oid[1].decode("ascii", "replace") if oid else "an unknown oid"
    return LfsPointerError(
        f"a git-lfs pointer, not the file itself: it stands for {stands_for}"
        + (f" of {int(size[1])} bytes" if size else ""),
        path=path,
        expected=f"{int(size[1])} bytes" if size else None,
        found="a pointer",
        fix="Run `git lfs pull` in its folder, or download the file itself",
    )
