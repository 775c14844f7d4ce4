# SPDX-License-Identifier: Apache-2.0
"""Loads in a thread that goes on when the main one has ended: Python's own pools take no more work then."""

from __future__ import annotations

import hashlib
from pathlib import Path
from textwrap import dedent

from safetensors.numpy import load_file
from support.files import write_sharded
from support.hub_server import HubServer, variables
from support.measure import output_of, run_child

_LATE = """
import sys, threading, torch  # torch cannot be imported as late as that
import weight_readers_loader as loader
def late():
    threading.main_thread().join()
    work(*sys.argv[1:])
def begin():
    threading.Thread(target=late).start()
"""


def test_a_load_is_verified(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path, 2)
    sums = tmp_path / "SUMS"
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in shards))
    source = """
        def work(folder, sums):
            checkpoint = loader.open_checkpoint(folder)
            weights = checkpoint.state_dict(verify=sums)
            print(sorted(weights), checkpoint.report.verified_files)
        begin()
    """
    names = sorted(name for path in shards for name in load_file(path))
    assert f"{names} 2" == output_of(_LATE + dedent(source), tmp_path, sums)


def test_headers_are_fetched_from_the_hub(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in write_sharded(tmp_path / "files", 2)}
    index = tmp_path / "files" / "model.safetensors.index.json"
    source = """
        from click.testing import CliRunner
        from weight_readers_loader.cli import cli
        def work():
            done = CliRunner().invoke(cli, ["inspect", "own/model"])
            print(done.exit_code, done.output)
        begin()
    """
    hub = HubServer()
    hub.put("own/model", {**files, index.name: index.read_bytes()})
    with hub.running():
        done = run_child(_LATE + dedent(source), **variables(hub.endpoint, str(tmp_path / "cache")))
    names = [name for path in files for name in load_file(tmp_path / "files" / path)]
    assert done.stdout.startswith("0 "), done.stdout + done.stderr
    assert [name for name in names if name not in done.stdout] == []
