# SPDX-License-Identifier: Apache-2.0
"""Our verdict on a file against that of the safetensors library, over mutated headers.

The predicates below are the rows of docs/decisions/0002-safetensors-verdicts.md where the two differ on purpose.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from support.files import entry

from weight_readers.errors import CheckpointError
from weight_readers_safetensors import DTYPES, read_header, torch_dtype


def library_accepts(path: Path) -> bool:
    """Whether the library opens the file and torch gets every tensor out of it."""
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                file.get_tensor(name)
    except (SafetensorError, TypeError, RuntimeError):
        return False
    return True


def we_accept(path: Path) -> bool:
    """Whether the header passes and the installed torch has every dtype; no other exception may come out."""
    try:
        for meta in read_header(path).tensors.values():
            torch_dtype(meta.source_dtype, path=meta.file, tensor=meta.name)
    except CheckpointError:
        return False
    return True


class Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys as they are written, equal ones included."""


def pairs_of(data: bytes) -> Pairs | None:
    """The header as pairs, or None where it is no JSON object."""
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    try:
        found = json.loads(data[8 : 8 + length].decode(), object_pairs_hook=Pairs)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Pairs) else None


def entries(data: bytes) -> list[Any]:
    return [value for name, value in pairs_of(data) or [] if name != "__metadata__"]


def shapes(data: bytes) -> list[list[int]]:
    found = [dict(each).get("shape") for each in entries(data) if isinstance(each, Pairs)]
    return [shape for shape in found if isinstance(shape, list) and all(isinstance(size, int) for size in shape)]


def has_equal_keys(value: Any) -> bool:
    if isinstance(value, Pairs):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(has_equal_keys(child) for _, child in value)
    return isinstance(value, list) and any(has_equal_keys(child) for child in value)


def begins_with_a_blank(data: bytes) -> bool:
    return data[8:9] in (b" ", b"\t", b"\n", b"\r")


def has_an_entry_written_as_a_list(data: bytes) -> bool:
    return any(isinstance(each, list) and not isinstance(each, Pairs) for each in entries(data))


def has_a_dtype_written_as_an_object(data: bytes) -> bool:
    return any(isinstance(dict(each).get("dtype"), Pairs) for each in entries(data) if isinstance(each, Pairs))


def has_too_many_dimensions(data: bytes) -> bool:
    return any(len(shape) > 64 for shape in shapes(data))


def has_an_overflowing_empty_shape(data: bytes) -> bool:
    return any(0 in shape and math.prod(size for size in shape if size) >= 2**63 for shape in shapes(data))


ROWS = (
    lambda data: has_equal_keys(pairs_of(data)),
    begins_with_a_blank,
    has_an_entry_written_as_a_list,
    has_a_dtype_written_as_an_object,
    has_too_many_dimensions,
    has_an_overflowing_empty_shape,
)


names = st.one_of(
    st.sampled_from(["a", "b", "layer.0", "", "ä", "😀", 'q"', "\\", "__metadata__x"]), st.text(max_size=4)
)
sizes = st.integers(0, 3)
odd_values = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2, 4, 8, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**400, 1.0, 0.5, -0.0),
        *("", "F32", "f32", "4", [], [0], [1], [4], [1, 2], [2**32, 2**32], [0, 2**63], [0, 2**62, 4], [1] * 65),
        *({}, {"F32": None}, {"x": 1}, [0, 4], [0, 8], [4, 8], [8, 4], [0, 4, 8], ["F32", [1], [0, 4]]),
        *(entry("U8", [1], 0, 1), entry("U8", [0], 0, 0), entry({"U8": None}, [0], 0, 0), ["U8", [0], [0, 0]]),
        *(entry("U8", [0, *[1] * 64], 0, 0), entry("F32", [0, 2**62, 3], 0, 0), entry("F32", [2**62, 2, 0], 0, 0)),
    ]
)


@st.composite
def headers(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], bytes]:
    """A valid header as pairs, and its body."""
    pairs: list[tuple[str, Any]] = []
    if draw(st.booleans()):
        pairs.append(("__metadata__", draw(st.dictionaries(names, st.text(max_size=3), max_size=2))))
    at = 0
    for name in draw(st.lists(names, max_size=4, unique=True)):
        dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
        shape = draw(st.lists(sizes, max_size=3))
        if dtype.bits < 8:
            shape = [*shape, 4]
        end = at + math.prod(shape) * dtype.bits // 8
        pairs.append((name, entry(dtype.name, shape, at, end)))
        at = end
    return draw(st.permutations(pairs)), b"\1" * at


@st.composite
def edited(draw: st.DrawFn, pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """One edit of the header as JSON."""
    pairs = list(pairs)
    at = draw(st.integers(0, max(0, len(pairs) - 1)))
    kind = draw(st.sampled_from(["value", "field", "number", "extra", "drop", "repeat", "rename", "add"]))
    if kind == "add" or not pairs:
        return [*pairs, (draw(names | st.just("__metadata__")), draw(odd_values))]
    name, value = pairs[at]
    if kind == "value":
        pairs[at] = (name, draw(odd_values))
    elif kind == "drop":
        del pairs[at]
    elif kind == "repeat":
        pairs.append(pairs[at])
    elif kind == "rename":
        pairs[at] = (draw(names), value)
    elif isinstance(value, dict) and value:
        pairs[at] = (name, draw(edited_entry(value, kind)))
    return pairs


@st.composite
def edited_entry(draw: st.DrawFn, value: dict[str, Any], kind: str) -> dict[str, Any]:
    field = draw(st.sampled_from(sorted(value)))
    if kind == "extra":
        return {**value, draw(names): draw(odd_values)}
    if kind == "number" and isinstance(value[field], list) and value[field]:
        place = draw(st.integers(0, len(value[field]) - 1))
        number = draw(odd_values | st.integers(0, 9))
        return {**value, field: [*value[field][:place], number, *value[field][place + 1 :]]}
    return {key: draw(odd_values) if key == field else each for key, each in value.items()}


bits_of_json = st.sampled_from(
    [
        *(
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b'"',
            b" ",
            b"\n",
            b"\0",
            b"-",
            b"0",
            b"1",
            b"e5",
            b".0",
            b"NaN",
            b"1e999",
        ),
        *(
            b"null",
            b"true",
            b"\\u0061",
            b"\\ud800",
            b"\\ud83d\\ude00",
            b"\\x",
            b"\xff",
            b"\xed\xa0\x80",
            b"\xef\xbb\xbf",
        ),
        *(b"\xc3\xa4", b'"x":1,', b"[" * 140, b"{}", b"\t", b"\x0c", b"-0", b"1" * 330, b'"dtype":"U8",', b"\x7f"),
    ]
)


@st.composite
def spliced(draw: st.DrawFn, data: bytes) -> bytes:
    """One edit of bytes: a piece replaced, put in, cut out, or one bit flipped."""
    at = draw(st.integers(0, len(data)))
    kind = draw(st.sampled_from(["insert", "replace", "delete", "flip"]))
    if kind == "insert":
        return data[:at] + draw(bits_of_json | st.binary(max_size=3)) + data[at:]
    if kind == "delete":
        return data[:at] + data[at + draw(st.integers(1, 4)) :]
    if kind == "replace":
        piece = draw(bits_of_json | st.binary(max_size=3))
        return data[:at] + piece + data[at + len(piece) :]
    return data[:at] + bytes([byte ^ (1 << draw(st.integers(0, 7))) for byte in data[at : at + 1]]) + data[at + 1 :]


def encode(pairs: list[tuple[str, Any]], separators: tuple[str, str], ascii_only: bool) -> bytes:
    # By hand, because equal keys must survive.
    def text(value: Any) -> str:
        return json.dumps(value, separators=separators, ensure_ascii=ascii_only)

    return ("{" + separators[0].join(text(k) + separators[1] + text(v) for k, v in pairs) + "}").encode(
        errors="surrogatepass"
    )


@st.composite
def files(draw: st.DrawFn) -> bytes:
    pairs, body = draw(headers())
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        pairs = draw(edited(pairs))
    header = encode(pairs, draw(st.sampled_from([(",", ":"), (", ", ": ")])), draw(st.booleans()))
    header += b" " * draw(st.integers(0, 8))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        header = draw(spliced(header))
    length = len(header) + draw(st.sampled_from([0] * 8 + [1, -1, 8, -8, 10**8, 2**63]))
    data = struct.pack("<Q", max(0, length)) + header + body
    return draw(st.sampled_from([data] * 6 + [data[:-1], data + b"\0", data[:7], data[: len(header)], b""]))


@given(data=files())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_verdict_is_the_librarys_or_a_row_of_the_decision_record(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(data)

    ours = we_accept(path)

    if ours != library_accepts(path):
        assert not ours
        assert any(row(data) for row in ROWS), data
