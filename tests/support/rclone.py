# SPDX-License-Identifier: Apache-2.0
"""rclone's S3 on loopback: a real server that checks signatures and serves a folder's folders as buckets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BINARY = Path(sys.executable).with_name("rclone")
KEY, SECRET = "key", "secret"


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Yields the endpoint. The test is skipped where rclone is not installed (requirements-dev.txt, Linux)."""
    if not BINARY.exists():
        pytest.skip("rclone is not installed")
    address = free_address()
    options = ["--addr", address, "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull, "--vfs-cache-mode", "off"]
    options += ["--dir-cache-time", "0"]  # files appear as they are written
    server = subprocess.Popen([BINARY, "serve", "s3", *options, root], stderr=subprocess.DEVNULL)
    try:
        wait_for(address)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait()


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def wait_for(address: str, seconds: float = 30) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens at {address} after {seconds:g} seconds")
