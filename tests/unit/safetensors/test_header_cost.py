# SPDX-License-Identifier: Apache-2.0
"""A hostile header costs its reader no memory: each is read in a child process whose peak is measured."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.files import write_tensors
from support.measure import PAGE, cached_bytes, evict

from weight_readers_safetensors import read_header

LENGTH = 90_000_000
ENTRY = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'

CHILD = """
import sys
from weight_readers.errors import CheckpointError
from weight_readers_safetensors import read_header

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def verdict(path):
    try:
        read_header(path)
    except CheckpointError as error:
        return type(error).__name__
    return "accepted"

verdict(sys.argv[1])
before = peak()
print(verdict(sys.argv[2]), peak() - before)
"""

HOSTILE = {
    "NULs behind a brace": (b"{", None),
    "blanks": (b"{", b" "),
    "newlines": (b"{", b"\n"),
    "brackets": (b'{"a":', b"["),
    "braces": (b'{"a":', b'{"a":'),
    "a list on top": (b"", b"["),
    "an endless name": (b'{"', b"x"),
    "an endless string": (b'{"a":"', b"x"),
    "an endless number": (b'{"a":{"x":', b"1"),
    "an endless list": (b'{"a":{"x":[', b"[],"),
    "an endless metadata value": (b'{"__metadata__":{"a":"', b"x"),
    "one emoji in it": (b'{"__metadata__":{"a":"' + "😀".encode(), b"x"),
    "an endless row of escapes": (b'{"__metadata__":{"a":"', b"\\n"),
    "equal metadata keys": (b'{"__metadata__":{', b'"a":"",'),
    "equal names": (b"{", b'"a":' + ENTRY + b","),
    "numbers for tensors": (b"{", b'"a":1,'),
    "NULs behind a tensor": (b'{"a":' + ENTRY, None),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "m.safetensors"
    path.write_bytes(struct.pack("<Q", 7) + b'{"a":1}')
    return path


def read_in_a_child(small: Path, path: Path) -> tuple[str, int]:
    done = subprocess.run([sys.executable, "-c", CHILD, small, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    verdict, kilobytes = done.stdout.split()
    return verdict, int(kilobytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_takes_less_than_20_megabytes(case: str, small: Path, tmp_path: Path) -> None:
    start, fill = HOSTILE[case]
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", LENGTH) + start)
        if fill:
            block = fill * (1 << 16)
            for _ in range((LENGTH - len(start)) // len(block) + 1):
                file.write(block)
        file.truncate(8 + LENGTH)

    verdict, kilobytes = read_in_a_child(small, path)
    path.unlink()

    assert verdict in ("HeaderError", "CheckpointProblems")
    assert kilobytes < 20_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("length", [2**31, 2**62, 2**64 - 1])
def test_the_length_field_is_not_believed(length: int, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    verdict, kilobytes = read_in_a_child(small, path)
    assert (verdict, kilobytes < 20_000) == ("HeaderError", True)


def test_reading_a_header_reads_nothing_of_the_data(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "big.safetensors", {"w": ("U8", [16 << 20], bytes(16 << 20))})
    evict(path)
    header = read_header(path)
    assert cached_bytes(path) <= -(-header.header_bytes // PAGE) * PAGE
