# SPDX-License-Identifier: Apache-2.0
"""Entries as every known writer puts them, taken many at a time: a header may have 100 000.

A text cut at its double quotes is still all there, so that it is JSON of the expected form if each piece is what has
to stand in its place: nothing is searched for, and nothing can lie between. Whatever does not fit makes the whole run
none, and goes the careful way through `HeaderText.value`, which costs several times as much and says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

PIECES = 10
"""Pieces of ``"name":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},`` between its ten quotes."""

_BETWEEN = (
    (2, {":{", ": {"}),
    (3, {"dtype"}),
    (4, {":", ": "}),
    (6, {",", ", "}),
    (7, {"shape"}),
    (9, {"data_offsets"}),
)
_is_dtype = re.compile("[A-Z0-9_]{1,64}").fullmatch
_WHOLE = "(?:0|[1-9][0-9]{0,17})"
_sizes = re.compile(rf": ?\[((?:{_WHOLE}(?:, ?{_WHOLE})*)?)\], ?").fullmatch
_CONTROLS = bytes(range(32))
_LARGEST = 10**18


class PlainRun(NamedTuple):
    """Entries as columns; ``shapes`` are texts, of which there are few, and `plain_shape` makes numbers of them."""

    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[str]
    begins: Sequence[int]
    ends: Sequence[int]


def plain_run(text: str) -> PlainRun | None:
    """The entries that ``text`` consists of, each with the comma behind it; None where it is anything else."""
    pieces = text.split('"')
    count = len(pieces) // PIECES
    if len(pieces) != PIECES * count + 1 or pieces[0]:
        return None
    names, dtypes, shapes = pieces[1::PIECES], pieces[5::PIECES], pieces[8::PIECES]
    offsets = _offsets(pieces[10::PIECES])
    if offsets is None or any(not words.issuperset(pieces[at::PIECES]) for at, words in _BETWEEN):
        return None
    if not _are_names(names) or not all(map(_is_dtype, set(dtypes))) or None in map(plain_shape, set(shapes)):
        return None
    return PlainRun(names, dtypes, shapes, offsets[::2], offsets[1::2])


@lru_cache(maxsize=1024)
def plain_shape(piece: str) -> tuple[int, ...] | None:
    """The sizes in ``:[512,1024],``; None where that is not how they are spelt."""
    found = _sizes(piece)
    return found and tuple(map(int, found[1].split(",") if found[1] else ()))


def _offsets(pieces: Sequence[str]) -> list[int] | None:
    """The numbers in all of ``:[0,1048576]},``, two of each."""
    # Joined by what no piece has in it: a piece with the numbers of two and one without any are not two pieces.
    data = '"'.join(pieces).encode()
    opening, closing = (b": [", b"]}, ") if data.startswith(b": ") else (b":[", b"]},")
    if not data.startswith(opening) or not data.endswith(closing):
        return None
    pairs = data[len(opening) : -len(closing)].replace(closing + b'"' + opening, b";")
    if pairs.translate(None, b"0123456789 ") + b";" != b",;" * len(pieces):
        return None
    try:
        numbers: list[int] = json.loads(b"[%b]" % pairs.replace(b";", b","))
    except ValueError:  # a leading zero, none at all, or more digits than a number may have
        return None
    return numbers if max(numbers) < _LARGEST else None


def _are_names(names: Sequence[str]) -> bool:
    """Whether all are spelt without escapes, and none is that of the metadata."""
    data = "".join(names).encode()
    return b"\\" not in data and len(data.translate(None, _CONTROLS)) == len(data) and "__metadata__" not in names
