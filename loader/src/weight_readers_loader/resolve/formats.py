# SPDX-License-Identifier: Apache-2.0
"""The format of a weight file: what its name claims, what its first bytes are, and which of the two is believed.

Which formats there are is core's to say: `weight_readers.file_formats` has those of this project and of all plugins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from weight_readers import FileFormat, FormatTable, file_formats
from weight_readers.errors import ForeignContentError, LfsPointerError
from weight_readers.format_table import one_of
from weight_readers.formats import HEAD_BYTES

__all__ = ["HEAD_BYTES", "FormatVerdict", "file_format", "format_by_name", "format_of", "require_format"]

_POINTER = "git-lfs pointer"
_POINTER_BEGINS = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, kw_only=True)
class FormatVerdict:
    """What a file is taken for: ``format`` is None where it is not to be read at all.

    ``by_content`` is the name of a format, ``"git-lfs pointer"``, or None for bytes that are none of these;
    ``note`` is set where name and content disagree.
    """

    format: str | None
    by_name: str | None
    by_content: str | None
    note: str | None = None


def format_by_name(name: str, *, asked: str | None = None) -> str | None:
    """The format that the suffix of ``name`` claims, in either case of letters; None for any other suffix.

    Of several that claim it the ``asked`` one, else their names as one, which `file_format` refuses.
    """
    return file_formats().named(name, asked=asked)


def file_format(name: str) -> FileFormat:
    """The declaration of a format. Raises FormatConflictError where it is not one."""
    return file_formats().require(name)


def format_of(name: str, head: bytes, *, asked: str | None = None) -> FormatVerdict:
    """The format of a file from its name and its first `HEAD_BYTES` bytes. Content decides.

    With one exception, for formats that declare it: reading a pickle can run code, so bytes of the pt format count
    only under a name that claims them or claims nothing (``MakazhanAlpamys/Soup#189``, ``facebookresearch/sam3#599``).
    Where several formats have the name or the content it is the one that has both, or the ``asked`` one.
    """
    table = file_formats()
    names = table.by_suffix(name)
    contents = table.by_content(head, names)
    by_name, by_content = one_of(names, asked, *contents), one_of(contents, asked, *names)
    if head.startswith(_POINTER_BEGINS):
        return FormatVerdict(format=None, by_name=by_name, by_content=_POINTER)
    decided = None if _is_misnamed(table, by_name, by_content) else by_content or by_name
    note = None
    if by_name and by_content and by_name != by_content:
        note = f"{name} is named as {by_name} and its content is {by_content}"
        note += f": read as {decided}" if decided else ""
    return FormatVerdict(format=decided, by_name=by_name, by_content=by_content, note=note)


def _is_misnamed(table: FormatTable, by_name: str | None, by_content: str | None) -> bool:
    """Whether the content is of a format that has to be named, and is named as another one."""
    if by_name is None or by_content in (None, by_name):
        return False
    return by_content in table.names and table.require(by_content).needs_name


def require_format(verdict: FormatVerdict, *, path: str) -> str:
    """The format of the file at ``path``.

    Raises LfsPointerError, ForeignContentError for a pickle, or what else has to be named, under another format's name
    and for bytes of no known format under a name of no known format, and FormatConflictError where plugins disagree
    about the file.
    """
    if verdict.by_content == _POINTER:
        raise LfsPointerError(
            "a git-lfs pointer is here in place of the weights", path=path, fix="Run `git lfs pull` in its folder."
        )
    if verdict.format is not None:
        return file_format(verdict.format).name
    if verdict.by_content is not None:
        raise _misnamed(verdict, file_format(verdict.by_content), path)
    suffix = os.path.splitext(path)[1]
    raise ForeignContentError(
        "not a weight file: neither its name nor its content is of a format that an installed reader declares",
        path=path,
        expected=" or ".join(file_formats().suffixes),
        found=f"the suffix {suffix!r} and other content" if suffix else "no suffix and other content",
        fix="Give the weight file, the index (*.safetensors.index.json), or the folder; or install the reader of its "
        "format: pip install DISTRIBUTION, and `weight-readers list` shows it.",
    )


def _misnamed(verdict: FormatVerdict, form: FileFormat, path: str) -> ForeignContentError:
    is_pickle = form.name == "pt"
    return ForeignContentError(
        f"{'a pickle' if is_pickle else form.name} is loaded only from a file that is named as one",
        path=path,
        expected=f"{verdict.by_name}, as its name says",
        found=f"{form.name} (a zip or pickle of torch.save)" if is_pickle else form.name,
        fix=f"Get the right file; or rename this one to {'.pt' if is_pickle else form.suffixes[0]} if you trust where "
        "it comes from.",
    )
