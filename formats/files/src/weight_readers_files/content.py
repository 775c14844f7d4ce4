# SPDX-License-Identifier: Apache-2.0
"""What a file is that is not of the format it was taken for, told by its first bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from weight_readers.errors import CheckpointError, EmptyFileError, ForeignContentError, LfsPointerError

HEAD_BYTES = 4096
"""How many of the first bytes `recognise` wants."""
DOWNLOAD_AGAIN = "Delete the file and download it again (an interrupted download, or a full disk)"
MAX_SAFETENSORS_HEADER = 100_000_000
"""The longest header the safetensors library takes, in bytes."""

_POINTER = b"version https://git-lfs"
_DOWNLOAD = "Download the file again"
_PT = 'Rename it to .pt, and install the reader: pip install "weight-readers[pt]"'
_SAFETENSORS = 'Rename it to .safetensors, and install the reader: pip install "weight-readers[mmap]"'
_GGUF = 'Rename it to .gguf, and install the reader: pip install "weight-readers[gguf]"'


@dataclass(frozen=True)
class Content:
    """A kind of content: what to call it and what its owner can do."""

    name: str
    fix: str
    matches: Callable[[bytes], bool]


def _starts(*prefixes: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(prefixes)


def _text_starts(*prefixes: bytes) -> Callable[[bytes], bool]:
    def matches(head: bytes) -> bool:
        return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:32].lower().startswith(prefixes)

    return matches


def _is_pickle(head: bytes) -> bool:
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _is_torch_zip(head: bytes) -> bool:
    # torch.save writes <name>/data.pkl as the first member of the archive.
    return head.startswith(b"PK\x03\x04") and b"/data.pkl" in head[:512]


def _is_text(head: bytes) -> bool:
    """Whether the first bytes are words: a character may be cut at the end, and eight bytes may be anything."""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        text = head[: error.start].decode() if error.start >= len(head) - 3 else ""
    return len(text) > 8 and all(letter.isprintable() or letter in "\t\r\n\f" for letter in text)


def looks_like_safetensors(head: bytes) -> bool:
    """Whether a plausible header length is followed by ``{``.

    Then the first bytes are that length, whatever else they look like: 0x80 0x02, the beginning of a pickle,
    is the length 640 as well, and a tensor may be *named* like a git-lfs pointer.
    """
    return int.from_bytes(head[:8], "little") <= MAX_SAFETENSORS_HEADER and head[8:9] == b"{"


CONTENTS = (
    Content("a safetensors file", _SAFETENSORS, looks_like_safetensors),
    Content("a git-lfs pointer", "Run `git lfs pull` in its folder, or download the file itself", _starts(_POINTER)),
    Content("a torch checkpoint (zip with data.pkl)", _PT, _is_torch_zip),
    Content("a zip archive", "Unpack it, and load the files inside", _starts(b"PK\x03\x04", b"PK\x05\x06")),
    Content("a GGUF file", _GGUF, _starts(b"GGUF")),
    # The magic words of 2023 are numbers, which lie backwards on disk.
    Content("a GGML file of the time before GGUF", "Get the model as GGUF; it cannot be read any more",
            _starts(b"lmgg", b"fmgg", b"tjgg", b"algg")),
    Content("a pickle (an old torch checkpoint)", _PT, _is_pickle),
    Content("a gzip archive", "Unpack it with gunzip or tar -xzf", _starts(b"\x1f\x8b")),
    Content("an xz, zstd or bzip2 archive", "Unpack it first", _starts(b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh")),
    Content("a tar archive", "Unpack it with tar -xf", lambda head: head[257:262] == b"ustar"),
    Content("an HDF5 file", "Convert it; HDF5 is not read here", _starts(b"\x89HDF\r\n")),
    Content("a numpy file", "Convert it; .npy is not read here", _starts(b"\x93NUMPY")),
    Content("an HTML page", f"A web page was saved in its place (a login or an error?): {_DOWNLOAD.lower()}",
            _text_starts(b"<!doctype html", b"<html", b"<head", b"<body")),
    Content("an XML document", f"A server's error was saved in its place: {_DOWNLOAD.lower()}", _text_starts(b"<")),
    Content("JSON text", f"An index, a config or a server's error message stands in its place: {_DOWNLOAD.lower()}",
            _text_starts(b"{", b"[")),
    Content("nothing but zero bytes at its start",
            f"A download reserved the space and never filled it: {_DOWNLOAD.lower()}", lambda head: not any(head)),
    Content("text", f"A note or an error message was saved in its place: {_DOWNLOAD.lower()}", _is_text),
)  # fmt: skip
"""In order of preference: the first that matches is what the content is."""


_OWN_SUFFIX = {"a safetensors file": ".safetensors", "a GGUF file": ".gguf"}


def recognise(head: bytes) -> Content | None:
    """The kind of content that begins with ``head`` (up to `HEAD_BYTES`), or None for none of those known."""
    return next((content for content in CONTENTS if head and content.matches(head)), None)


def foreign_content(path: str, head: bytes, *, expected: str, what: str) -> CheckpointError:
    """The error for a file whose first bytes are ``head`` and are not ``expected``; ``what`` is the format's name.

    `EmptyFileError`, `LfsPointerError` with the oid and size it stands for, or `ForeignContentError` that says
    what the name claims and what the content is.
    """
    if not head:
        return EmptyFileError("empty file (0 bytes)", path=path, fix=_DOWNLOAD)
    content = recognise(head)
    if content is not None and head.startswith(_POINTER):
        return _pointer_error(path, head, content)
    found = content.name if content else "nothing that is known here"
    fix = content.fix if content else f"Give a {what} file, or download this one again"
    if content is not None and _OWN_SUFFIX.get(content.name) == os.path.splitext(path)[1].lower():
        fix = f"Give a {what} file here; this one is read by the readers of its own format"
    return ForeignContentError(
        f"{_claim(path, what)}, and the content is {found}",
        path=path,
        expected=expected,
        found=content.name if content else repr(head[:8]),
        fix=fix,
    )


def _claim(path: str, what: str) -> str:
    suffix = os.path.splitext(path)[1]
    return f"the name says {suffix}" if suffix else f"read as {what}"


def _pointer_error(path: str, head: bytes, content: Content) -> LfsPointerError:
    oid = re.search(rb"^oid (\S{1,128})\r?$", head, re.MULTILINE)
    size = re.search(rb"^size ([0-9]{1,20})\r?$", head, re.MULTILINE)
    stands_for = f"{oid[1].decode('ascii', 'replace') if oid else 'an unknown oid'}"
    return LfsPointerError(
        f"a git-lfs pointer, not the file itself: it stands for {stands_for}"
        + (f" of {int(size[1])} bytes" if size else ""),
        path=path,
        expected=f"{int(size[1])} bytes" if size else None,
        found=f"a pointer of {len(head)} bytes" if len(head) < HEAD_BYTES else "a pointer",
        fix=content.fix,
    )
