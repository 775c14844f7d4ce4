# SPDX-License-Identifier: Apache-2.0
"""A store asked in a thread that goes on when the main one has ended: Python's own pools take no more work then."""

from __future__ import annotations

import hashlib
from pathlib import Path
from textwrap import dedent

from support.measure import output_of
from support.object_server import ObjectServer
from support.tensors import noise, write_shards


def test_headers_tensors_and_digests_come(server: ObjectServer, tmp_path: Path) -> None:
    keys = [f"models/{path.name}" for path in map(Path, write_shards(tmp_path, 2))]
    server.objects |= {key: (tmp_path / key.removeprefix("models/")).read_bytes() for key in keys}
    server.objects["models/large"] = noise(20 << 20)
    source = """
        import sys, threading, torch
        from weight_readers_runai.reader import StreamerReader
        def late():
            threading.main_thread().join()
            *shards, large = sys.argv[1:]
            reader = StreamerReader()
            print(len(reader.read_meta(shards)), len(list(reader.iter_weights(shards))), reader.digest(large, "sha256"))
        threading.Thread(target=late).start()
    """
    right = hashlib.sha256(server.objects["models/large"]).hexdigest()
    uris = [f"s3://{key}" for key in (*keys, "models/large")]
    assert f"4 4 {right}" == output_of(dedent(source), *uris)
