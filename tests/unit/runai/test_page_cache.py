# SPDX-License-Identifier: Apache-2.0
"""What is cached is read through the page cache and what is not past it, by the kernel's counters; and it is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.files import write_tensors
from support.measure import evict, output_of
from support.tensors import noise

from weight_readers_files.residency import cached_fraction

MIB = 1 << 20
NBYTES = 32 * MIB
NEARLY = NBYTES * 9 // 10
"""The kernel takes a few pages back when it likes, and its read-ahead brings some with the header."""

CASES: dict[str, tuple[str, str, dict[str, str]]] = {
    "cached": ("cached", "state_dict", {}),
    "cached, into": ("cached", "load_into", {}),
    "cached, on": ("cached", "state_dict", {"direct_io": "on"}),
    "cached, into, on": ("cached", "load_into", {"direct_io": "on"}),
    "cold": ("cold", "state_dict", {}),
    "cold, into": ("cold", "load_into", {}),
    "cold, off": ("cold", "state_dict", {"direct_io": "off"}),
    "half": ("half", "state_dict", {}),
}
LOADS = """
import json, sys
from pathlib import Path
import torch
from support.measure import cached_bytes, evict
from weight_readers_loader import open_checkpoint

def from_storage():
    (line,) = (each for each in Path("/proc/self/io").read_text().splitlines() if each.startswith("read_bytes:"))
    return int(line.split()[1])

def prepare(path, state):
    evict(path)
    with path.open("rb") as file:
        file.read({"cold": 0, "half": path.stat().st_size // 2, "cached": path.stat().st_size}[state])

def load(path, state, how, options):
    checkpoint = open_checkpoint(path, reader="runai_streamer", reader_options=options)
    list(checkpoint.iter_weights(key_filter="small".__eq__))  # so that all code is there
    targets = {name: torch.empty(meta.nbytes, dtype=torch.uint8) for name, meta in checkpoint.tensors.items()}
    prepare(path, state)
    before = from_storage(), cached_bytes(path)
    report = checkpoint.load_into(targets) if how == "load_into" else (checkpoint.state_dict(), checkpoint.report)[1]
    assert report.reader == "runai_streamer"
    return {"before": before[1], "read": from_storage() - before[0], "after": cached_bytes(path),
            "decisions": report.decisions}

print(json.dumps({name: load(Path(sys.argv[1]), *case) for name, case in json.loads(sys.argv[2]).items()}))
"""


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By case: bytes in the page cache before and after, those that came from storage, and the report's decisions."""
    tensors = {f"t{n}": ("U8", [4 * MIB], noise(4 * MIB, n)) for n in range(8)}
    tensors["small"] = ("U8", [1], b"x")
    path = write_tensors(tmp_path_factory.mktemp("cache") / "m.safetensors", tensors)
    evict(path)
    if cached_fraction(str(path), 0, 1) is None:
        pytest.skip("this kernel does not tell what is cached (Linux before 6.5)")
    found: dict[str, Any] = json.loads(output_of(LOADS, path, json.dumps(CASES)))
    return found


def decided(loads: dict[str, Any], case: str) -> str:
    """The one decision of the report, without its reason."""
    (said,) = loads[case]["decisions"]
    return str(said).partition(":")[0]


def test_a_cached_file_is_not_read_from_storage_again(loads: dict[str, Any]) -> None:
    assert loads["cached"]["before"] >= NEARLY
    assert loads["cached"]["read"] <= NBYTES - NEARLY
    assert decided(loads, "cached") == "read through the page cache"


@pytest.mark.parametrize(("case", "from_storage"), [("cached, into", 0), ("cold, into", NBYTES)])
def test_into_the_callers_memory_it_is_read_through_the_cache(
    loads: dict[str, Any], case: str, from_storage: int
) -> None:
    """There the library itself would, whatever it is told, unless that memory lies as the bytes in the file do."""
    assert abs(loads[case]["read"] - from_storage) <= NBYTES - NEARLY
    assert loads[case]["after"] >= NEARLY
    assert decided(loads, case) == "read through the page cache"


def test_a_file_that_is_not_cached_is_read_past_the_cache(loads: dict[str, Any]) -> None:
    assert loads["cold"]["read"] >= NBYTES
    assert loads["cold"]["after"] <= NBYTES - NEARLY
    assert loads["cold"]["decisions"] == ["read past the page cache: 0% of the files was in it"]


def test_of_a_file_that_is_cached_in_part_the_rest_comes_from_storage(loads: dict[str, Any]) -> None:
    assert loads["half"]["read"] <= NBYTES * 6 // 10
    assert decided(loads, "half") == "read through the page cache"


def test_what_was_asked_for_is_done_and_is_no_decision_of_the_readers(loads: dict[str, Any]) -> None:
    assert loads["cached, on"]["read"] >= NBYTES, "what the library does by default"
    assert loads["cached, into, on"]["read"] >= NBYTES, "what it does not do into memory of the caller's"
    assert loads["cold, off"]["after"] >= NEARLY
    for case in ("cached, on", "cached, into, on", "cold, off"):
        assert loads[case]["decisions"] == []
