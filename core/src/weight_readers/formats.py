# SPDX-License-Identifier: Apache-2.0
"""How the files of a format are recognised: what a plugin declares of its own format, and what core knows of ours.

Those of this project are declared here and not by their plugins: a file is told what it is, and which command
installs its reader, where that is not installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from weight_readers import _schema
from weight_readers._schema import Schema

HEAD_BYTES = 512
"""The first bytes of a file, within which all signatures lie."""

_NAME = re.compile(r"[a-z0-9_]+")
_SUFFIX = re.compile(r"\.[a-z0-9_]+")


def _name(field_name: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{field_name} must match [a-z0-9_]+, not {value!r}")
    return value


def _suffixes(field_name: str, value: Any) -> tuple[str, ...]:
    suffixes = _schema.ordered_names(field_name, value)
    for suffix in suffixes:
        if not _SUFFIX.fullmatch(suffix):
            raise ValueError(f"{field_name}: {suffix!r} is no suffix: a dot, and a-z, 0-9 and _ after it ('.npz')")
    return tuple(dict.fromkeys(suffixes))


@dataclass(frozen=True, kw_only=True)
class Signature(Schema):
    """First bytes that tell a format: ``data`` at ``offset``, and ``contains`` anywhere in the first `HEAD_BYTES`.

    Both are bytes, or hexadecimal text as JSON has them. The more bytes a signature has the more it says: of two
    that match a file the longer one counts.
    """

    data: bytes = field(metadata={"coerce": _schema.binary})
    offset: int = field(default=0, metadata={"coerce": _schema.whole(0)})
    contains: bytes = field(default=b"", metadata={"coerce": _schema.binary})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise ValueError("Signature.data is empty, which every file begins with")
        if self.offset + len(self.data) > HEAD_BYTES:
            raise ValueError(f"a Signature lies within the first {HEAD_BYTES} bytes of a file, not at {self.offset}")

    def to_json(self) -> dict[str, Any]:
        """As JSON, with the bytes in hexadecimal."""
        return {**super().to_json(), "data": self.data.hex(), "contains": self.contains.hex()}

    def __len__(self) -> int:
        return len(self.data) + len(self.contains)

    def matches(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` has it."""
        return head.startswith(self.data, self.offset) and self.contains in head[:HEAD_BYTES]


@dataclass(frozen=True, kw_only=True)
class FileFormat(Schema):
    """A file format: how a file of it is told from others, and what its files are to a folder.

    A file is of the format where its ``suffixes`` (with the dot, in small letters) and ``signatures`` say so; where
    they disagree the content counts. ``needs_name`` says that it does not: bytes of this format under another one's
    suffix are refused (a pickle that is named as something else). ``header_first`` says that all that describes the
    tensors comes before the first of them, so that headers of stored files are read without the rest.
    ``loose_files`` says that files of a folder are one checkpoint also where no index and no number says so.

    Shards with numbers (``model-00001-of-00002``) and an index (``model<suffix>.index.json``) are known in all formats.
    """

    name: str = field(metadata={"coerce": _name})
    suffixes: tuple[str, ...] = field(metadata={"coerce": _suffixes})
    signatures: tuple[Signature, ...] = field(default=(), metadata={"coerce": _schema.schemas(Signature)})
    needs_name: bool = field(default=False, metadata={"coerce": _schema.flag})
    header_first: bool = field(default=False, metadata={"coerce": _schema.flag})
    loose_files: bool = field(default=False, metadata={"coerce": _schema.flag})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.suffixes:
            raise ValueError(f"FileFormat {self.name!r} has no suffix: files of a folder are found by it")

    def agrees(self, other: FileFormat) -> bool:
        """Whether the same files are of both, in whatever order suffixes and signatures are declared."""
        return self._unordered() == other._unordered()

    def _unordered(self) -> FileFormat:
        signatures = sorted(self.signatures, key=repr)
        return replace(self, suffixes=tuple(sorted(self.suffixes)), signatures=tuple(signatures))

    def match(self, head: bytes) -> int:
        """How many bytes of its longest signature a file that begins with ``head`` has; 0 for none."""
        return max((len(each) for each in self.signatures if each.matches(head)), default=0)


KNOWN_FORMATS: tuple[FileFormat, ...] = (
    FileFormat(
        name="safetensors",
        suffixes=(".safetensors",),
        # Eight bytes of length, then JSON. A length below 4 GiB is more than the two bytes of a pickle, which a
        # length may look like (0x0280); any other is less.
        signatures=(Signature(data=b"\0\0\0\0{", offset=4), Signature(data=b"{", offset=8)),
        header_first=True,
        loose_files=True,
    ),
    FileFormat(name="gguf", suffixes=(".gguf",), signatures=(Signature(data=b"GGUF"),), header_first=True),
    FileFormat(
        name="pt",
        suffixes=(".bin", ".pt", ".pth", ".ckpt"),
        # torch.save writes <name>/data.pkl as the first member of its archive; before 1.6 it wrote pickles.
        signatures=(
            Signature(data=b"PK\x03\x04", contains=b"/data.pkl"),
            *(Signature(data=bytes([0x80, protocol])) for protocol in (2, 3, 4, 5)),
        ),
        needs_name=True,
    ),
)
"""The formats of this project, in the order in which a folder that holds several is read."""
