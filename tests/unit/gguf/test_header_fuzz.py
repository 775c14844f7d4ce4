# SPDX-License-Identifier: Apache-2.0
"""Mutated headers: a typed error, or what the gguf package reads from the same bytes.

``WEIGHT_READERS_FUZZ=10000 pytest tests/unit/gguf/test_header_fuzz.py`` for a long run.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from unit.gguf.gguf_bytes import VALUE_TYPES, gguf_bytes
from unit.gguf.header_oracles import Seen, by_gguf, same

from weight_readers.errors import CheckpointError
from weight_readers_gguf.checkpoint import read_checkpoint

KNOWN_TO_GGUF = frozenset(map(int, gguf.GGMLQuantizationType))
EXAMPLES = int(os.environ.get("WEIGHT_READERS_FUZZ", "200"))

SCALARS = {name: (name, 1) for name in VALUE_TYPES if name not in ("STRING", "ARRAY")}
BASES = (
    gguf_bytes(
        {"a.weight": (2, (2, 32), bytes(36)), "b": (0, (3,), bytes(12)), "c.weight": (12, (1, 256), bytes(144))},
        {"general.architecture": "llama", **SCALARS, "text": "ein Wort", "comfy.gguf.orig_shape.b": ("INT32", [3])},
    ),
    gguf_bytes(
        {"a.weight": (30, (2, 2, 2), bytes(16)), "d": (27, (), bytes(8)), "e": (24, (0, 4), b"")},
        {"tokens": ["a", "", "schön"], "scores": [0.5, 1.5], "nested": [[1, 2], [3]], "flags": [True, False]},
        alignment=64,
        version=2,
    ),
)
NUMBERS = [0, 1, 2, 8, 9, 31, 32, 33, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    content = bytearray(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["bytes", "u32", "u64", "delete", "insert", "repeat", "cut"]))
        if kind == "bytes":
            new = draw(st.binary(min_size=1, max_size=4))
            content[at : at + len(new)] = new
        elif kind in ("u32", "u64"):
            width = 4 if kind == "u32" else 8
            number = draw(st.sampled_from(NUMBERS) | st.integers(0, 400)) % 2 ** (8 * width)
            content[at : at + width] = struct.pack("<I" if width == 4 else "<Q", number)
        elif kind == "delete":
            del content[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            content[at:at] = draw(st.binary(min_size=1, max_size=40))
        elif kind == "repeat":
            content[at:at] = content[at : at + draw(st.integers(1, 80))]
        else:
            del content[at:]
    return bytes(content)


def ours(path: Path) -> Seen:
    """What is read by us; raises CheckpointError."""
    checkpoint = read_checkpoint([path])
    (header,) = checkpoint.headers
    tensors = {each.name: (each.shape, each.type, each.offset, each.nbytes or 0) for each in header.tensors}
    assert list(tensors) == list(checkpoint.tensors)
    assert all(end <= header.nbytes for _, _, offset, nbytes in tensors.values() if (end := offset + nbytes) > offset)
    return Seen(header.version, header.alignment, dict(header.metadata), tensors)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.gguf"


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@example(content=BASES[0])
@example(content=BASES[1])
@given(content=mutants())
def test_a_mutated_header_is_refused_by_name_or_read_as_the_gguf_package_reads_it(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    found, refusal = attempt(ours, path, CheckpointError)
    if found is None:
        assert str(path) in refusal
        return
    expected, refusal = attempt(by_gguf, path, ValueError)
    if expected is None:
        unknown = [type_id for _, type_id, _, _ in found.tensors.values() if type_id not in KNOWN_TO_GGUF]
        assert unknown, f"read by us, and the gguf package says: {refusal}"
        return
    assert (expected.version, expected.alignment) == (found.version, found.alignment)
    assert list(expected.metadata) == list(found.metadata)
    assert [key for key, value in expected.metadata.items() if not same(value, found.metadata[key])] == []
    assert expected.tensors == found.tensors


def attempt(read: Callable[[Path], Seen], path: Path, kind: type[Exception]) -> tuple[Seen | None, str]:
    """What is read, or None and the words of the refusal."""
    try:
        return read(path), ""
    except kind as error:
        return None, str(error)
