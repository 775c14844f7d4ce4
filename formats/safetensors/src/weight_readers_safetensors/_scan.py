# SPDX-License-Identifier: Apache-2.0
"""One pass over the header of one file: what it lists, and all that is wrong with it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from operator import attrgetter, sub
from typing import TypeGuard, TypeVar

from weight_readers.errors import CheckpointError, DuplicateTensorError, HeaderError, TruncatedFileError
from weight_readers.tensors import TensorKind, TensorTable
from weight_readers_files.content import HEAD_BYTES, MAX_SAFETENSORS_HEADER
from weight_readers_safetensors._entries import (
    Fields,
    MalformedEntryError,
    Sound,
    fields_of,
    geometry,
    json_word,
    listed,
    problems_of,
    sound_kind,
)
from weight_readers_safetensors._layout import DOWNLOAD_AGAIN, Placed, layout_problems, size_problems
from weight_readers_safetensors._plain import PlainRun, plain_shape
from weight_readers_safetensors._text import HeaderText
from weight_readers_safetensors.content import foreign_content

MAX_ENTRY = 256 * 1024
"""Characters in one tensor's entry."""
MAX_METADATA = 4 * 1024 * 1024
"""Characters in ``__metadata__``."""
MAX_METADATA_KEYS = 8_192
MAX_PROBLEMS = 100
"""Problems collected per file before reading its header stops."""


T = TypeVar("T")
_nbytes = attrgetter("nbytes")


class _TooManyProblemsError(Exception):
    """Enough problems are collected."""


class Scan:
    """One pass over one file; what it found stays readable when the pass breaks off."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.nbytes = 0
        self.data_start = 0
        self.metadata: dict[str, str] = {}
        self.problems: list[CheckpointError] = []
        # Columns over all entries; of those whose name was there before, the rows are in ``_again``.
        self._placed = Placed([], [], [])
        self._kinds: list[TensorKind] = []
        self._names: set[str] = set()
        self._again: list[int] = []
        self._has_metadata = False
        self._layout_known = True

    @property
    def tensors(self) -> TensorTable:
        """What could be listed so far, in the order of the header; of two entries of one name the first."""
        names, begins = self._first(self._placed.names), self._first(self._placed.begins)
        offsets = [self.data_start + begin for begin in begins]
        return TensorTable.of_columns(names, self._first(self._kinds), [self.path] * len(names), offsets)

    def _first(self, column: Sequence[T]) -> Sequence[T]:
        """A column without the rows whose name was there before."""
        again = frozenset(self._again)
        return [each for row, each in enumerate(column) if row not in again] if again else column

    def read(self, file: io.RawIOBase) -> None:
        self.nbytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(HEAD_BYTES) or b""
        if error := foreign_content(self.path, head) or self._length_problem(head):
            raise error
        self.data_start = 8 + int.from_bytes(head[:8], "little")
        cut = self._cut_in_header()
        self._require_brace(head[8:])
        file.seek(8)
        text = HeaderText(file, min(self.data_start, self.nbytes) - 8, self.path, cut)
        try:
            self._members(text)
            self._layout()
        except _TooManyProblemsError:
            self.problems.append(
                HeaderError(f"more than {MAX_PROBLEMS} problems; the rest was not looked at", path=self.path)
            )

    def _length_problem(self, head: bytes) -> CheckpointError | None:
        if len(head) < 8:
            return TruncatedFileError(
                f"the file is cut (it has {len(head)} of the 8 bytes that hold the header's length)",
                path=self.path,
                expected="at least 10 bytes",
                found=f"{self.nbytes} bytes",
                fix=DOWNLOAD_AGAIN,
            )
        length = int.from_bytes(head[:8], "little")
        if length > MAX_SAFETENSORS_HEADER:
            return HeaderError(
                "not a safetensors file, or its length field is damaged",
                path=self.path,
                expected=f"a header of at most {MAX_SAFETENSORS_HEADER} bytes",
                found=f"a length field of {length}",
            )
        return HeaderError("the length field says 0: there is no header", path=self.path) if length == 0 else None

    def _cut_in_header(self) -> TruncatedFileError | None:
        if self.data_start <= self.nbytes:
            return None
        return TruncatedFileError(
            f"the file is cut inside its header (missing bytes: at least {self.data_start - self.nbytes})",
            path=self.path,
            expected=f"at least {self.data_start} bytes",
            found=f"{self.nbytes} bytes",
            fix=DOWNLOAD_AGAIN,
        )

    def _require_brace(self, start: bytes) -> None:
        """The first byte of the header must be ``{`` (the format's README); say what is there instead."""
        if start[:1] not in (b"{", b""):
            raise HeaderError(
                f"{_first_byte_fault(start)}, at byte 8 of the file",
                path=self.path,
                expected="'{' as the first byte of the header",
                found=f"0x{start[0]:02x}",
            )

    def _members(self, text: HeaderText) -> None:
        for name, run in text.entries():
            if run:
                self._take_run(run)
            elif name == "__metadata__":
                self._take_metadata(text)
            else:
                self._take_tensor(name, text)
        text.finish()

    def _take_run(self, run: PlainRun) -> None:
        """Entries whose fields are of the right types; there may be 100 000, so what is right is taken at once."""
        kinds = _kinds(run)
        fresh = set(run.names)
        if len(fresh) == len(run.names) and fresh.isdisjoint(self._names) and _fill(kinds, run.begins, run.ends):
            self._names |= fresh
            self._kinds += kinds
            self._placed.add(run.names, run.begins, run.ends)
        else:
            for name, dtype, shape, begin, end in zip(*run, strict=True):
                self._place(name, Fields(dtype, plain_shape(shape) or (), begin, end))

    def _take_tensor(self, name: str, text: HeaderText) -> None:
        try:
            fields = fields_of(text.value(MAX_ENTRY, "the entry of one tensor"))
        except MalformedEntryError as error:
            self._layout_known = False
            self._add(HeaderError(str(error), path=self.path, tensor=name))
            return
        self._place(name, fields)

    def _place(self, name: str, fields: Fields) -> None:
        size = geometry(fields.dtype, fields.shape)
        if name in self._names:
            self._again.append(len(self._kinds))
            self._add(DuplicateTensorError("the header has this name twice", path=self.path, tensor=name))
        self._names.add(name)
        self._kinds.append(listed(fields, size))
        self._layout_known &= fields.begin <= fields.end
        self._placed.add([name], [fields.begin], [fields.end])
        for problem in problems_of(name, fields, size, self.path):
            self._add(problem)

    def _take_metadata(self, text: HeaderText) -> None:
        if self._has_metadata:
            raise text.error("__metadata__ appears twice")
        self._has_metadata = True
        if text.peek() == "{":
            self._take_pairs(text)
        elif (value := text.value(MAX_ENTRY, "__metadata__")) is not None:
            self._add(HeaderError(f"__metadata__ is {json_word(value)}, not an object", path=self.path))

    def _take_pairs(self, text: HeaderText) -> None:
        size = 0
        for count, key in enumerate(text.keys()):
            value = text.value(MAX_METADATA, "a value in __metadata__")
            size += len(key) + len(value) if isinstance(value, str) else len(key)
            if count >= MAX_METADATA_KEYS or size > MAX_METADATA:
                raise text.error(
                    f"__metadata__ takes more than {MAX_METADATA} characters or {MAX_METADATA_KEYS} keys, "
                    "more than this reader allows"
                )
            if key in self.metadata:
                self._add(HeaderError(f"__metadata__ has the key {key[:64]!r} twice", path=self.path))
            elif isinstance(value, str):
                self.metadata[key] = value
            else:
                self._add(
                    HeaderError(f"metadata key {key[:64]!r} holds {json_word(value)}, not a string", path=self.path)
                )

    def _layout(self) -> None:
        if not self._layout_known:
            return
        for problem in layout_problems(self._placed, self.path):
            self._add(problem)
        for problem in size_problems(self._placed, self.path, self.data_start, self.nbytes):
            self._add(problem)

    def _add(self, problem: CheckpointError) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            raise _TooManyProblemsError
        self.problems.append(problem)


def _kinds(run: PlainRun) -> list[Sound]:
    """The kind of each entry; most runs are of one dtype, and then a text leads to it."""
    dtypes = set(run.dtypes)
    if len(dtypes) > 1:
        return list(map(sound_kind, run.dtypes, run.shapes))
    dtype = dtypes.pop()
    known = {shape: sound_kind(dtype, shape) for shape in set(run.shapes)}
    return [known[shape] for shape in run.shapes]


def _fill(kinds: list[Sound], begins: Iterable[int], ends: Iterable[int]) -> TypeGuard[list[TensorKind]]:
    """Whether nothing is wrong with any kind, and each byte range holds as many bytes as its kind takes."""
    return None not in kinds and list(map(sub, ends, begins)) == list(map(_nbytes, kinds))


def _first_byte_fault(start: bytes) -> str:
    if start.startswith(b"\xef\xbb\xbf"):
        return "the header begins with a byte-order mark"
    if start[:1] in b" \t\n\r":
        return "the header begins with a blank"
    if start[:1] == b"[":
        return "the top level of the header is a list, not an object"
    if start[:1] == b"\0":
        return "the header begins with NUL bytes"
    if start[:1] in b'"-0123456789tfn':
        return "the top level of the header is a single value, not an object"
    return "the header does not begin as JSON does"
