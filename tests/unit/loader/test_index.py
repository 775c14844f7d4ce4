# SPDX-License-Identifier: Apache-2.0
"""The index: checked whole, with the path and what was found, before any file is opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import write_index

from weight_readers.errors import BadIndexError, CheckpointError, CheckpointProblems, UnsafePathError
from weight_readers_loader.resolve import index as module
from weight_readers_loader.resolve.index import read_index, why_unsafe
from weight_readers_loader.resolve.listing import FolderListing

NAME = "model.safetensors.index.json"


def read(folder: Path, content: bytes | str) -> module.Index:
    data = content.encode() if isinstance(content, str) else content
    (folder / NAME).write_bytes(data)
    return read_index(FolderListing(str(folder)), NAME)


def test_an_index_has_its_shards_in_natural_order(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "m-10.safetensors", "b": "m-2.safetensors", "c": "m-10.safetensors"}, total_size=12)
    index = read_index(FolderListing(str(tmp_path)), NAME)
    assert index.shards == ("m-2.safetensors", "m-10.safetensors")
    assert index.weight_map == {"a": "m-10.safetensors", "b": "m-2.safetensors", "c": "m-10.safetensors"}
    assert (index.path, index.name, index.total_size) == (str(tmp_path / NAME), NAME, 12)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        *[("12", 12), ("12.0", 12), ("1.6e10", 16_000_000_000), ("0", 0)],
        *[(nothing, None) for nothing in ("-1", "1.5", "true", '"12"', "null", "1e999", "[]")],
    ],
)
def test_a_total_size_is_a_whole_number_or_nothing(tmp_path: Path, value: str, size: int | None) -> None:
    content = f'{{"metadata": {{"total_size": {value}}}, "weight_map": {{"a": "m.safetensors"}}}}'
    assert size == read(tmp_path, content).total_size


@pytest.mark.parametrize("metadata", ["null", "[]", '"x"', "{}", "3"])
def test_metadata_of_any_kind_is_no_hindrance(tmp_path: Path, metadata: str) -> None:
    content = f'{{"metadata": {metadata}, "weight_map": {{"a": "m.safetensors"}}}}'
    assert read(tmp_path, content).total_size is None


@pytest.mark.parametrize(
    ("content", "what", "found"),
    [
        (b"", "empty", "0 bytes"),
        (b"   ", "not valid JSON", "Expecting value"),
        (b"[]", "not a JSON object", "[]"),
        (b"null", "not a JSON object", "null"),
        (b"3", "not a JSON object", "3"),
        (b"{}", "maps no tensor", "null"),
        (b'{"weight_map": []}', "maps no tensor", "[]"),
        (b'{"weight_map": {}}', "maps no tensor", "{}"),
        (b'{"weight_map": null}', "maps no tensor", "null"),
        (b'{"weight_map": "x"}', "maps no tensor", '"x"'),
        (b'{"weight_map": {"a": 1}}', "names no file", "1"),
        (b'{"weight_map": {"a": null}}', "names no file", "null"),
        (b'{"weight_map": {"a": ["m.safetensors"]}}', "names no file", '["m.safetensors"]'),
        (b'{"weight_map": {"a": "m.safetensors"', "not valid JSON", "delimiter"),
        (b'{"weight_map": {"a": "m.safetensors"}} x', "not valid JSON", "Extra data"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "not valid JSON", 'the key \'a\' twice, with "x" and "y"'),
        (b'{"weight_map": {"a": "x"}, "weight_map": {"a": "x"}}', "not valid JSON", "the key 'weight_map' twice"),
        (b'{"weight_map": {"a": NaN}}', "not valid JSON", "NaN"),
        (b'{"metadata": {"total_size": -Infinity}}', "not valid JSON", "-Infinity"),
        (b'{"weight_map": {"a": "\xff"}}', "not UTF-8", "byte 22"),
        (b"[" * 200_000, "not valid JSON", "nested too deeply"),
        (b"\xef\xbb\xbf{}", "not valid JSON", "a byte order mark before the JSON"),
        (b"1" * 5000, "not valid JSON", "a number of 5000 digits"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 9\n", "git-lfs pointer", "git-lfs pointer"),
    ],
)
def test_what_is_no_index_is_refused_with_what_was_found(tmp_path: Path, content: bytes, what: str, found: str) -> None:
    with pytest.raises(BadIndexError, match=what) as caught:
        read(tmp_path, content)
    assert str(tmp_path / NAME) == caught.value.path
    assert found in str(caught.value.found)
    assert not [advice for advice in ("sys.", "utf-8-sig", "recursion") if advice in str(caught.value)]
    assert caught.value.expected
    assert caught.value.fix


def test_a_number_longer_than_python_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadIndexError):
        read(tmp_path, '{"metadata": {"total_size": 1' + "0" * 5000 + "}}")


def test_an_index_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INDEX_LIMIT", 100)
    with pytest.raises(BadIndexError, match="too large"):
        read(tmp_path, json.dumps({"weight_map": {"a": "x" * 100}}))


def test_a_long_value_is_shown_in_short(tmp_path: Path) -> None:
    with pytest.raises(BadIndexError) as caught:
        read(tmp_path, json.dumps({"weight_map": ["x" * 10_000]}))
    assert len(str(caught.value.found)) == 60


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../secret.safetensors", "'..'"),
        ("sub/../../x", "'..'"),
        ("sub/..", "'..'"),
        ("..", "'..'"),
        ("/abs/x", "absolute"),
        ("//host/x", "absolute"),
        ("C:\\x", "backslash"),
        ("C:x", "drive letter"),
        ("c:/x", "drive letter"),
        ("..\\x", "backslash"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("", "empty"),
        (".", "'.'"),
        ("./x", "'.'"),
        ("sub/", "ends with a slash"),
        ("sub//x", "empty part"),
        ("s3://bucket/x", "empty part"),
        ("\ud800", "Unicode"),
    ],
)
def test_a_name_that_is_not_plain_and_relative_is_unsafe(tmp_path: Path, name: str, reason: str) -> None:
    assert reason in (why_unsafe(name) or "")
    with pytest.raises(UnsafePathError) as caught:
        read(tmp_path, json.dumps({"weight_map": {"the.tensor": name}}))
    assert caught.value.tensor == "the.tensor"
    assert repr(name) in str(caught.value.found)


@pytest.mark.parametrize("name", ["model.safetensors", "sub/model.safetensors", "a b.safetensors", "..x", "x..", "é"])
def test_a_plain_name_is_safe_also_below_the_folder(name: str) -> None:
    assert why_unsafe(name) is None


def test_each_bad_value_is_listed_once_with_its_first_tensor(tmp_path: Path) -> None:
    with pytest.raises(CheckpointProblems) as caught:
        read(tmp_path, json.dumps({"weight_map": {"a": "../x", "b": "../x", "c": 1, "d": "ok", "e": "/y"}}))
    found: list[tuple[type[CheckpointError], str | None]] = [(type(p), p.tensor) for p in caught.value.problems]
    assert found == [(UnsafePathError, "a"), (BadIndexError, "c"), (UnsafePathError, "e")]


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("[1]", "metadata that is no object ([1])"),
        ('{"total_size": "12"}', 'total_size that is no number of bytes ("12")'),
        ('{"total_size": -1}', "total_size that is no number of bytes (-1)"),
    ],
)
def test_metadata_that_is_ignored_is_said(tmp_path: Path, metadata: str, said: str) -> None:
    content = f'{{"metadata": {metadata}, "weight_map": {{"a": "m.safetensors"}}}}'
    (notice,) = read(tmp_path, content).notices
    assert said in notice


def test_metadata_that_is_not_there_is_no_notice(tmp_path: Path) -> None:
    content = '{"metadata": {"total_size": null}, "weight_map": {"a": "m.safetensors"}}'
    assert read(tmp_path, content).notices == ()


def test_a_name_that_is_too_long_is_refused_and_shown_in_short(tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError, match="longer than 4096 characters") as caught:
        read(tmp_path, json.dumps({"weight_map": {"t" * 100_000: "x" * 100_000}}))
    assert len(str(caught.value)) < 2000


def test_a_long_key_that_is_there_twice_is_shown_in_short(tmp_path: Path) -> None:
    key = "k" * 100_000
    with pytest.raises(BadIndexError, match="twice") as caught:
        read(tmp_path, f'{{"{key}": 1, "{key}": 2}}')
    assert len(str(caught.value)) < 2000


def test_a_flood_of_bad_values_is_cut(tmp_path: Path) -> None:
    with pytest.raises(CheckpointProblems) as caught:
        read(tmp_path, json.dumps({"weight_map": {f"t{n}": f"../x{n}" for n in range(1000)}}))
    assert len(caught.value.problems) == 100


@pytest.mark.parametrize(
    "text",
    [
        r'{"weight_map": {"a": "x", "\u0061": "y"}}',
        r'{"weight_map": {"a": "x", "a": "x", "\"": "y"}}',
        '{"metadata": {"n": 1, "n": 1}, "weight_map": {"a": "x"}}',
        '{"metadata": {"n": [{"b": 1, "b": 1}]}, "weight_map": {"a": "x"}}',
        '{"metadata": {"n": {"b": 1, "b": 1}}, "weight_map": {"a": "x"}}',
        '{"metadata": null, "metadata": 1, "weight_map": {"a": "x"}}',
        '{"weight_map": {"a": "x", "a": 1}}',
    ],
)
def test_a_key_that_is_there_twice_is_found_however_it_is_written_and_wherever_it_is(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadIndexError, match=r"the key .* twice"):
        read(tmp_path, text)


@given(st.lists(st.tuples(st.text('ab"\\é', max_size=3), st.sampled_from(["x", "y", "é"])), min_size=1, max_size=5))
def test_an_index_is_refused_where_a_name_is_there_twice_and_only_there(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    members = ", ".join(f"{json.dumps(name)}: {json.dumps(file, ensure_ascii=False)}" for name, file in pairs)
    folder = tmp_path_factory.mktemp("index")
    if len({name for name, _ in pairs}) < len(pairs):
        with pytest.raises(BadIndexError, match="twice"):
            read(folder, f'{{"weight_map": {{{members}}}}}')
    else:
        assert dict(pairs) == read(folder, f'{{"weight_map": {{{members}}}}}').weight_map
