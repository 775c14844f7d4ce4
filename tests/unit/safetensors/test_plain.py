# SPDX-License-Identifier: Apache-2.0
"""Entries that are taken many at a time say what the json module says of them, or are left to the careful way."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import entry, write_safetensors

from weight_readers_safetensors import _text, read_header
from weight_readers_safetensors._plain import plain_run, plain_shape
from weight_readers_safetensors._text import HeaderText

COMPACT, SPACED = (",", ":"), (", ", ": ")
ENTRIES = {"a": entry("F32", [2, 3], 0, 24), "": entry("BF16", [], 24, 26), "ä😀],}": entry("U8", [0], 26, 26)}


def text_of(entries: Any, separators: tuple[str, str]) -> str:
    return json.dumps(entries, separators=separators, ensure_ascii=False)[1:-1] + separators[0]


def columns(text: str) -> list[tuple[str, Any]] | None:
    run = plain_run(text)
    if run is None:
        return None
    rows = zip(run.names, run.dtypes, map(plain_shape, run.shapes), run.begins, run.ends, strict=True)
    return [(name, entry(dtype, list(shape or ()), begin, end)) for name, dtype, shape, begin, end in rows]


def by_json(text: str) -> list[tuple[str, Any]]:
    """Each object of the text as its pairs, so that a key that is there twice shows."""
    pairs = json.loads(f'{{{text}"end":0}}', object_pairs_hook=list)
    return [(name, dict(value) if len(value) == 3 else value) for name, value in pairs[:-1]]


@pytest.mark.parametrize("separators", [COMPACT, SPACED])
def test_entries_as_writers_spell_them_are_taken_at_once(separators: tuple[str, str]) -> None:
    assert columns(text_of(ENTRIES, separators)) == list(ENTRIES.items())


PIECES = [
    '"',
    ",",
    ", ",
    ":",
    "[",
    "]",
    "{",
    "}",
    "]},",
    "0",
    "07",
    "-0",
    "1e1",
    "5",
    " ",
    "\\",
    "\n",
    "dtype",
    "F32",
    "ß",
]


@given(
    at=st.integers(0, 200),
    cut=st.integers(0, 12),
    put=st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
    separators=st.sampled_from([COMPACT, SPACED]),
)
def test_what_is_taken_is_what_the_json_module_reads(at: int, cut: int, put: str, separators: tuple[str, str]) -> None:
    text = text_of(ENTRIES, separators)
    text = text[:at] + put + text[at + cut :]
    found = columns(text)
    if found is not None:
        assert found == by_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[0]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,4,8]},',
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},:[4,8]},"b":{"dtype":"F32","shape":[1],"data_offsets"',
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},:[4"b":{"dtype":"F32","shape":[1],"data_offsets",8]},',
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,"b":{"dtype":"F32","shape":[1],"data_offsets"4]},:[4,8]},',
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[00,4]},',
        '"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]},',
        '"a":{"dtype":"F32","shape":[1 2],"data_offsets":[0,4]},',
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[0 0,4]},',
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[,4]},',
        '"a":{"dtype":"F32","data_offsets":[0,4],"shape":[1]},',
        '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "b":1,',
        '"a\\u0062":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},',
        '"a\tb":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},',
        '"__metadata__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},',
        f'"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,{10**400}]}},',
        f'"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,{"9" * 5000}]}},',
        f'"a":{{"dtype":"F32","shape":[{10**20}],"data_offsets":[0,4]}},',
        '"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]},',
    ],
)
def test_what_is_spelt_otherwise_is_not_taken(text: str) -> None:
    assert plain_run(text) is None


@pytest.mark.parametrize("separators", [COMPACT, SPACED])
def test_odd_entries_among_many_leave_the_listing_whole(separators: tuple[str, str], tmp_path: Path) -> None:
    header: dict[str, Any] = {f"t{i}": entry("U8", [1], i, i + 1) for i in range(2000)}
    for i in range(0, 2000, 100):
        header[f"t{i}"]["more"] = ["x"]
    names = list(header)
    header = {**dict(list(header.items())[:1500]), "__metadata__": {"k": "v"}, **dict(list(header.items())[1500:])}
    path = write_safetensors(tmp_path / "m", json.dumps(header, separators=separators).encode(), bytes(2000))
    found = read_header(path)
    assert ([*found.tensors], found.metadata) == (names, {"k": "v"})
    assert [meta.offset - found.header_bytes for meta in found.tensors.values()] == list(range(2000))


ENTRY = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def test_entries_behind_metadata_are_taken_at_once() -> None:
    text = text_in(f'{{"__metadata__":{{"format":"pt","of":"x"}},"a":{ENTRY},"b":{ENTRY},"c":{ENTRY}}}')
    taken: list[str | list[str]] = []
    for key, run in text.entries():
        taken.append(list(run.names) if run else key)
        if key == "__metadata__":
            assert {name: text.value(9, "") for name in text.keys()} == {"format": "pt", "of": "x"}  # noqa: SIM118
        elif not run:
            text.value(99, "")
    assert taken == ["__metadata__", ["a", "b"], "c"]


def test_of_entries_that_are_all_spelt_otherwise_few_are_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(_text, "plain_run", looks.append)
    text = text_in(json.dumps({f"t{i}": json.loads(ENTRY) for i in range(2000)}, indent=1))
    assert sum(1 for _ in text.entries() if text.value(999, "")) == 2000
    assert len(looks) < 20


def text_in(header: str) -> HeaderText:
    return HeaderText(io.BytesIO(header.encode()), len(header), "model", None)
