# SPDX-License-Identifier: Apache-2.0
"""The index of a sharded checkpoint: which tensor lies in which file. Checked whole before any file is opened.

The format is that of ``transformers``: ``{"metadata": {"total_size": 16}, "weight_map": {"tensor": "file"}}``.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from weight_readers.errors import BadIndexError, CheckpointError, CheckpointProblems, UnsafePathError
from weight_readers_loader.arguments import short
from weight_readers_loader.resolve.formats import HEAD_BYTES, format_of
from weight_readers_loader.resolve.listing import NAME_LIMIT, Listing, natural_key

__all__ = ["INDEX_LIMIT", "Index", "read_index", "why_unsafe"]

INDEX_LIMIT = 100_000_000
"""The largest index that is read, in bytes. The index of a checkpoint with 10^5 tensors has about 10^7."""

_DIGITS = 4300
"""The longest whole number that is read: as many digits as Python reads unless it is told otherwise."""

_MOST = 100
"""So many bad values are listed: a hostile index may have a million."""

_TOO_DEEP = "lists or objects nested too deeply"

_FIX = "Download the index again; or remove it if the files are complete without one."


@dataclass(frozen=True, kw_only=True)
class Index:
    """``weight_map`` is tensor name -> file name; ``shards`` its distinct file names in natural order.

    ``total_size`` is the sum of the tensors' bytes that the index claims, None where it claims nothing usable.
    ``notices`` say what it holds that is ignored.
    """

    path: str
    name: str
    weight_map: Mapping[str, str] = field(hash=False)
    shards: tuple[str, ...]
    total_size: int | None = None
    notices: tuple[str, ...] = ()

    @cached_property
    def by_shard(self) -> Mapping[str, list[str]]:
        """File name -> the tensors that are said to be in it, in the order of the map."""
        found: dict[str, list[str]] = {}
        names = iter(self.weight_map)
        for shard, run in groupby(self.weight_map.values()):
            found.setdefault(shard, []).extend(islice(names, len(list(run))))
        return found


def read_index(listing: Listing, name: str) -> Index:
    """Read and check the index ``name``.

    Raises BadIndexError for what is not an index, UnsafePathError for a file name that is not a plain name
    below the folder (CheckpointProblems where there are several), UnreadableFileError.
    """
    path = listing.path_of(name)
    document = _parse(_read(listing, name, path), path)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad("the index maps no tensor to a file", path, "a non-empty object as weight_map", _shown(weight_map))
    shards = _shards(weight_map, path)
    total = _total_size(document)
    said = tuple(f"the index {name} {what}: ignored" for what in _unusable(document, total))
    return Index(path=path, name=name, weight_map=weight_map, shards=shards, total_size=total, notices=said)


def _read(listing: Listing, name: str, path: str) -> bytes:
    data = listing.read_bytes(name, INDEX_LIMIT + 1)
    if not data:
        raise _bad("the index is empty", path, "JSON", "0 bytes")
    if len(data) > INDEX_LIMIT:
        raise _bad("the index is too large", path, f"at most {INDEX_LIMIT} bytes", "more")
    if format_of(name, data[:HEAD_BYTES]).by_content == "git-lfs pointer":
        raise BadIndexError(
            "a git-lfs pointer is here in place of the index",
            path=path,
            expected="JSON",
            found="a git-lfs pointer",
            fix="Run `git lfs pull` in its folder.",
        )
    return data


def _parse(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = _document(data)
    except UnicodeDecodeError as error:
        raise _bad("the index is not UTF-8", path, "UTF-8", f"byte {error.start} is no part of it") from error
    except RecursionError as error:
        raise _bad("the index is not valid JSON", path, "one JSON object", _TOO_DEEP) from error
    except ValueError as error:
        raise _bad("the index is not valid JSON", path, "one JSON object", str(error)) from error
    if not isinstance(document, dict):
        raise _bad("the index is not a JSON object", path, "an object with a weight_map", _shown(document))
    return document


def _document(data: bytes) -> Any:
    if data.startswith(codecs.BOM_UTF8):
        raise ValueError("a byte order mark before the JSON")
    text = data.decode("utf-8")
    document = json.loads(text, parse_constant=_refuse_constant, parse_int=_number)
    if _has_all_texts(document, text):
        return document
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_number)


def _has_all_texts(document: Any, text: str) -> bool:
    """Whether as many texts are in an index as in its JSON: of a key that is there twice one is lost.

    Pairs of keys and values, which would show it too, are an object each, 100 000 of them for a second dict. False
    where counting does not tell: with escapes, or with anything but texts and numbers that is nested.
    """
    if "\\" in text or not isinstance(document, dict):
        return False
    objects = [document, *(value for value in document.values() if isinstance(value, dict))]
    count = 0
    for each in objects:
        kinds = set(map(type, each.values()))
        if kinds - {str, int, float, bool, type(None)} - ({dict} if each is document else set()):
            return False
        count += len(each) + (len(each) if kinds == {str} else sum(isinstance(v, str) for v in each.values()))
    return 2 * count == text.count('"')


def _number(digits: str) -> int:
    if len(digits) > _DIGITS:  # refused in our own words, before Python does
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
        values = " and ".join(_shown(value) for name, value in pairs if name == twice)
        raise ValueError(f"the key {short(repr(twice))} twice, with {short(values)}")
    return unique


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text}, which JSON does not have")


def _shards(weight_map: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The distinct file names in natural order. Raises for what is none, each with the first tensor that has it."""
    kinds = set(map(type, weight_map.values()))
    names = set(weight_map.values()) if kinds == {str} else set()
    if kinds != {str} or any(map(why_unsafe, names)):
        CheckpointProblems.raise_any(islice(_bad_values(weight_map, path), _MOST), path=path)
    return tuple(sorted(names, key=natural_key))


def _bad_values(weight_map: Mapping[str, Any], path: str) -> Iterator[CheckpointError]:
    """One problem for each distinct value, with the first tensor that has it."""
    seen: set[str] = set()
    for tensor, value in weight_map.items():
        if not isinstance(value, str):
            yield BadIndexError(
                "the index names no file for a tensor",
                path=path,
                tensor=short(tensor),
                expected="a file name",
                found=_shown(value),
                fix=_FIX,
            )
        elif value not in seen and (reason := why_unsafe(value)):
            yield UnsafePathError(
                "the index names a file by more than a plain name below its folder",
                path=path,
                tensor=short(tensor),
                expected="a name such as 'model.safetensors' or 'sub/model.safetensors'",
                found=f"{short(repr(value))}: {reason}",
                fix="Do not use this index unless you know who wrote it.",
            )
        if isinstance(value, str):
            seen.add(value)


def why_unsafe(name: str) -> str | None:
    """Why ``name`` is no plain relative name, judged by its text alone; None if it is one.

    Nothing is resolved: what a name leads to may change between a check and the opening
    (huggingface/transformers#47176, huggingface/accelerate#4070).
    """
    if len(name) > NAME_LIMIT:  # before the rules below, which look at every character
        return f"it is longer than {NAME_LIMIT} characters"
    parts = name.split("/")
    rules = (
        (not name, "it is empty"),
        (any(ord(c) < 32 or c == "\x7f" for c in name), "it holds a control character"),
        ("\\" in name, "it holds a backslash"),
        (name.startswith("/"), "it is absolute"),
        (re.match("[A-Za-z]:", name) is not None, "it starts with a drive letter"),
        (name.endswith("/"), "it ends with a slash"),
        ("" in parts, "it has an empty part"),
        ("." in parts, "it has the part '.'"),
        (".." in parts, "it has the part '..'"),
        (any("\ud800" <= c <= "\udfff" for c in name), "it is not valid Unicode"),
    )
    return next((reason for applies, reason in rules if applies), None)


def _total_size(document: Mapping[str, Any]) -> int | None:
    metadata = document.get("metadata")
    value = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value >= 0 and value == value // 1 else None


def _unusable(document: Mapping[str, Any], total: int | None) -> Iterator[str]:
    """What is there in place of the metadata or the total size, and is neither."""
    metadata = document.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        yield f"has metadata that is no object ({_shown(metadata)})"
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if size is not None and total is None:
        yield f"has a total_size that is no number of bytes ({_shown(size)})"


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:
        return _TOO_DEEP
    return text if len(text) <= 60 else text[:57] + "..."


def _bad(what: str, path: str, expected: str, found: str) -> BadIndexError:
    return BadIndexError(what, path=path, expected=expected, found=found, fix=_FIX)
