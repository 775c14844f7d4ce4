# SPDX-License-Identifier: Apache-2.0
"""A process ends soon and well, whatever its store does: the native library waits 30 seconds and more for one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.files import write_tensors
from support.measure import run_child
from support.object_server import ObjectServer
from support.tensors import noise

URI = "s3://b/m.safetensors"
MIB = 1 << 20

LOAD = """
import atexit, ctypes, sys, time
from weight_readers import UnreadableFileError
from weight_readers_runai.reader import StreamerReader
atexit.register(lambda: print("atexit"))
reader = StreamerReader(timeout=2)
weights = reader.iter_weights([sys.argv[1]])
try:
    for name, _ in weights:
        if name == sys.argv[2]:
            break
except UnreadableFileError as error:
    print(error.what)
print(time.monotonic())
ctypes.CDLL(None).printf(b"buffered by C\\n")
sys.exit(7)
"""


@pytest.mark.parametrize(("fault", "held"), [("never", False), ("drip", True)])
def test_a_process_ends_at_once_with_its_exit_code_while_a_store_is_silent(
    server: ObjectServer, tmp_path: Path, fault: str, held: bool
) -> None:
    data = {f"t{n}": ("U8", [2 * MIB], noise(2 * MIB, n)) for n in range(24)}
    server.objects["b/m.safetensors"] = write_tensors(tmp_path / "m.safetensors", data).read_bytes()
    server.fault, server.strikes = fault, lambda span: span[0] > 12 * MIB
    done = run_child(LOAD, URI, "t3" if held else "none")
    ended = time.monotonic()
    *said, began, flushed, atexit = done.stdout.splitlines()
    assert said == ([] if held else ["no answer for 2 seconds while streaming"])
    assert (done.returncode, done.stderr) == (7, "")
    assert {flushed, atexit} == {"buffered by C", "atexit"}
    assert ended - float(began) < 15, "without care it takes 30 to 60 seconds"
