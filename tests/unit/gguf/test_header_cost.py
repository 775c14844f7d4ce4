# SPDX-License-Identifier: Apache-2.0
"""A header costs its reader little memory, whatever it says: read in a child process whose peak is measured."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.measure import PAGE, cached_bytes, evict
from unit.gguf.gguf_bytes import array, front, gguf_bytes, info, padded, raw_pair, text, write_gguf

from weight_readers_gguf.header import read_header
from weight_readers_gguf.header._limits import MAX_ITEMS, MAX_TENSORS

CHILD = """
import sys
from weight_readers.errors import CheckpointError
from weight_readers_gguf.meta import read_meta

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def verdict(path):
    try:
        read_meta([path], None)
    except CheckpointError as error:
        return type(error).__name__
    return "accepted"

verdict(sys.argv[1])
for path in sys.argv[2:]:
    before = peak()
    print(verdict(path), peak() - before)
"""
MOST = 20 * 1024
STRING, ARRAY = 8, 9
NAMELESS = text("\0") + struct.pack("<IIQ", 0, 0, 0)

HOSTILE = {
    "endless strings": (front(0, 1) + raw_pair("k", ARRAY, array(STRING, MAX_ITEMS)), 8 * MAX_ITEMS + 4096),
    "one endless string": (front(0, 1) + raw_pair("k", STRING, struct.pack("<Q", 1 << 29)), 1 << 30),
    "strings as long as the file": (
        front(0, 1) + raw_pair("k", ARRAY, array(STRING, 1000, struct.pack("<Q", 1 << 24))),
        1 << 30,
    ),
    "an endless array of numbers": (front(0, 1) + raw_pair("k", ARRAY, array(10, 1 << 26)), 1 << 30),
    "arrays within arrays": (
        front(0, 1) + raw_pair("k", ARRAY, array(ARRAY, 1 << 16, array(0, 0) * (1 << 16)) + b"\0"),
        0,
    ),
    "more arrays within arrays": (front(0, 1) + raw_pair("k", ARRAY, array(ARRAY, 1 << 20)), 1 << 25),
    "names that are none": (front(MAX_TENSORS, 0) + NAMELESS * MAX_TENSORS, 0),
    "one name": (front(MAX_TENSORS, 0) + info("t", (1,), 0, 0) * MAX_TENSORS, 0),
    "an alignment that is an array": (
        front(0, 1) + raw_pair("general.alignment", ARRAY, array(0, 1 << 26)),
        1 << 27,
    ),
    "an alignment that is a text": (
        front(0, 1) + raw_pair("general.alignment", STRING, struct.pack("<Q", 1 << 26)),
        1 << 27,
    ),
    "a number of files that is an array": (
        front(0, 1) + raw_pair("split.count", ARRAY, array(0, 1 << 26)),
        1 << 27,
    ),
    "an architecture that is an array": (
        front(0, 1) + raw_pair("general.architecture", ARRAY, array(0, 1 << 26)),
        1 << 27,
    ),
    "a set of more files than memory": (
        front(0, 2) + raw_pair("split.count", 10, struct.pack("<Q", 1 << 62)) + raw_pair("split.no", 0, b"\0"),
        0,
    ),
    "one long key": (front(0, 300) + raw_pair("k" * 65_000, 0, b"\0") * 300, 0),
}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, int]]]:
    """Case -> verdict, and by how many KiB the peak grew. One child reads them all, for each start takes a while."""
    folder = tmp_path_factory.mktemp("hostile")
    small = write_gguf(folder / "small.gguf", {"a": (0, (1,), bytes(4))}, {"k": "v"})
    paths = []
    for number, (content, size) in enumerate(HOSTILE.values()):
        paths.append(folder / f"{number}.gguf")
        paths[-1].write_bytes(content)
        os.truncate(paths[-1], max(size, len(content)))
    paths.append(write_gguf(folder / "large.gguf", {}, large_metadata()))
    command = [sys.executable, "-c", CHILD, str(small), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    yield {case: (verdict, int(grown)) for case, (verdict, grown) in zip([*HOSTILE, "large"], lines, strict=True)}
    for path in paths:
        path.unlink()


def large_metadata() -> dict[str, object]:
    """15 MB as a vocabulary has them: 250,000 tokens and merges."""
    tokens = [f"token{i}" for i in range(250_000)]
    return {"tokens": tokens, "merges": [f"{token} {i}" for i, token in enumerate(tokens)], "name": "m"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_or_read_in_less_than_20_megabytes(
    case: str, costs: dict[str, tuple[str, int]]
) -> None:
    verdict, grown = costs[case]
    assert (verdict.endswith("Error") or verdict in ("accepted", "CheckpointProblems"), grown < MOST) == (True, True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_header_of_15_megabytes_is_read_in_less_than_20(costs: dict[str, tuple[str, int]]) -> None:
    verdict, grown = costs["large"]
    assert (verdict, grown < MOST) == ("accepted", True)


def test_no_tensor_is_read_with_the_header(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    header = gguf_bytes({"a": (0, (1,), bytes(4))}, {"k": "v" * 100})
    path.write_bytes(padded(header) + bytes(64 * 1024 * 1024))
    evict(path)
    read_header(path)
    assert cached_bytes(path) <= 64 * 1024 + PAGE
