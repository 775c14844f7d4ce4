# SPDX-License-Identifier: Apache-2.0
"""An index says what the json module says of it, where no key is there twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weight_readers.errors import CheckpointError
from weight_readers_loader.resolve.index import read_index
from weight_readers_loader.resolve.listing import FolderListing


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def by_json(text: str) -> Any:
    try:
        document = json.loads(text, object_pairs_hook=unique)
    except ValueError:
        return "refused"
    found = document.get("weight_map") if isinstance(document, dict) else None
    return found if isinstance(found, dict) and found and set(map(type, found.values())) == {str} else "refused"


def by_us(folder: Path, text: str) -> Any:
    (folder / "i.json").write_text(text)
    try:
        return read_index(FolderListing(str(folder)), "i.json").weight_map
    except CheckpointError:
        return "refused"


KEY = '"weight_map": '
PIECES = [*'{}[]:,"\\1\t', KEY, KEY + "{", '"weight\\u005fmap": {}', '"a": "f"', '"a":"g",', '"\\u0061": "f"', '"x": {']


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=7), whole=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_text_has_the_map_that_the_json_module_finds(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], whole: bool
) -> None:
    text = "".join(pieces)
    text = f'{{{KEY}{{"n": "f", {text}}}}}' if whole else text
    assert by_us(tmp_path_factory.getbasetemp(), text) == by_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"x": {"weight_map": {"a": "f"}}, "weight\\u005fmap": {}}',
        '{"x": {"weight_map": {"a": "f"}}, "weight_map": {}}',
        '{"x": "weight_map": {"a": "f"}}',
        '{"weight_map": {"a": "f"}, "weight\\u005fmap": {"a": "g"}}',
        '{"weight_map": {"a": "f", "a": "g"}}',
        '{"weight_map": {"a": "f", "\\u0061": "g"}}',
        '{"weight_map": {"a": "f",}}',
        '{"weight_map": {"a" "f"}}',
        '{"weight_map": {"a\tb": "f"}}',
        '["weight_map", {"a": "f"}]',
        '{"weight_map": {"a": "f"',
    ],
)
def test_a_map_that_only_looks_like_one_is_none(text: str, tmp_path: Path) -> None:
    assert by_us(tmp_path, text) == "refused" == by_json(text)
