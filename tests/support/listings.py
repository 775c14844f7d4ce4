# SPDX-License-Identifier: Apache-2.0
"""Listings as people publish them and as nobody should: names and contents, for Hypothesis to put together."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import strategies as st

Files = dict[str, bytes]
"""The path of each file below the place, with ``/`` between parts, and its contents."""

WEIGHTS = struct.pack("<Q", 8) + b"{}      "
CONTENTS = (
    WEIGHTS,
    b"GGUF\x03" + bytes(19),
    b"PK\x03\x04" + bytes(26),
    b"",
    b"version https://git-lfs.github.com/spec/v1\n",
)
NAMES = (
    "model.safetensors",
    "model.fp16.safetensors",
    *(f"model-0000{n}-of-0000{total}.safetensors" for total in (2, 3) for n in range(1, total + 1)),
    "model.fp16-00001-of-00002.safetensors",
    "model-rank-0-part-0.safetensors",
    "model-rank-1-part-0.safetensors",
    "diffusion_pytorch_model.safetensors",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin",
    "optimizer.bin",
    "Tiny-Q4_K_M.gguf",
    "Tiny-UD-Q4_K_M.gguf",
    "tiny.q8_0.gguf",
    "Tiny-BF16-00001-of-00002.gguf",
    "mmproj-F16.gguf",
    "imatrix.gguf",
    ".hidden.safetensors",
    "model.safetensors.incomplete",
    "config.json",
    "мodel é 漢.safetensors",
    "A b.SAFETENSORS",
)
INDEXES = ("model.safetensors.index.json", "model.safetensors.index.fp16.json", "pytorch_model.bin.index.json")
FOLDERS = ("", "", "", "transformer/", "text_encoder/", "Q4_K_M/", "BF16/deep/", "漢/")
ELSEWHERE = (
    "..",
    ".",
    "",
    "/",
    "../secret.safetensors",
    "/etc/passwd",
    "sub/../../secret.safetensors",
    "..\\secret.safetensors",
    "C:\\secret.safetensors",
    "./model.safetensors",
    "sub//model.safetensors",
    "model.safetensors/",
    "a\0b.safetensors",
    "\ud800.safetensors",
    "%2e%2e/secret.safetensors",
    "x" * 5000,
)
"""Names that are no plain ones below a folder."""

ASKED: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"use_format": "gguf"},
    {"use_format": "pt"},
    {"variant": "fp16"},
    {"rank": 0, "world_size": 2},
    {"subfolder": "transformer"},
)
"""What is asked of a listing beside the place."""

_plain = st.text(
    st.characters(codec="utf-8", exclude_categories=["C"], exclude_characters="/\\:"), min_size=1, max_size=12
)
_odd = _plain.filter(lambda text: text.strip(".") != "").map(lambda text: f"{text}.safetensors")
names = st.one_of(st.sampled_from(NAMES), _odd)
paths = st.builds("{}{}".format, st.sampled_from(FOLDERS), names)


@st.composite
def indexes(draw: st.DrawFn, files: list[str]) -> bytes:
    """An index of some of ``files``, of names that are not there, and now and then of what is no name."""
    values = st.sampled_from([*files, *NAMES])
    values = st.one_of(values, values, values, st.sampled_from([*ELSEWHERE, None, 1, ["a"]]))
    document: Any = {"metadata": {"total_size": 4}, "weight_map": draw(st.dictionaries(_plain, values, max_size=4))}
    broken = st.sampled_from(
        ["", "[]", "null", '{"weight_map": {"a": "b", "a": "c"}}', '{"weight_map": {"a": "mod', "[" * 5000]
    )
    text = draw(st.one_of(st.just(json.dumps(document)), st.just(json.dumps(document)), broken))
    return text.encode()


@st.composite
def listings(draw: st.DrawFn) -> Files:
    """What a folder, a repository and a bucket can all hold: plain names, none of them a file and a folder at once."""
    contents = st.one_of(st.just(WEIGHTS), st.sampled_from(CONTENTS))
    files = draw(st.dictionaries(paths, contents, max_size=7))
    for name in draw(st.lists(st.sampled_from(INDEXES), max_size=2, unique=True)):
        where = draw(st.sampled_from(FOLDERS))
        here = [path.removeprefix(where) for path in files if path.startswith(where)]
        files[f"{where}{name}"] = draw(indexes(here))
    folders = {path.rpartition("/")[0] for path in files}
    return {**{path: data for path, data in files.items() if path not in folders}, "README.md": b"# model\n"}


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(ELSEWHERE)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
_maps = st.dictionaries(st.text(max_size=8), st.one_of(st.sampled_from([*NAMES, *ELSEWHERE]), _json), max_size=4)
_documents = st.fixed_dictionaries({}, optional={"metadata": _json, "weight_map": st.one_of(_maps, _maps, _json)})
documents = st.one_of(
    _documents.map(lambda document: json.dumps(document).encode()),
    _documents.map(lambda document: json.dumps(document).encode()[:-3]),
    st.binary(max_size=64),
    indexes(["model.safetensors"]),
)
"""What may lie under the name of an index: one of these, half of one, one with odd parts, or anything."""
