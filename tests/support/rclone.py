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
from typing import NamedTuple

import pytest

BINARY = Path(sys.executable).with_name("rclone")
KEY, SECRET = "key", "secret"


@contextmanager
def served(root: Path, *, changing: bool = False) -> Iterator[str]:
    """Yields the endpoint of a `Server`."""
    with running(root, changing=changing) as server:
        yield server.endpoint


class Server(NamedTuple):
    endpoint: str
    process: subprocess.Popen[bytes]

    def sent_bytes(self) -> int:
        """All that the process has written so far, answers and their headers: the kernel's count."""
        text = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(text.partition("wchar:")[2].split()[0])


@contextmanager
def running(root: Path, *, changing: bool = False) -> Iterator[Server]:
    """Serves ``root``. The test is skipped where rclone is not installed (requirements-dev.txt, Linux).

    ``changing`` has what is written to ``root`` meanwhile appear at once. It makes every request cost the MD5 of the
    whole file, which rclone has as ETag and keeps with its listings: for small files only.
    """
    if not BINARY.exists():
        pytest.skip("rclone is not installed")
    address = free_address()
    options = ["--addr", address, "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull, "--vfs-cache-mode", "off"]
    options += ["--dir-cache-time", "0"] if changing else []
    server = subprocess.Popen([BINARY, "serve", "s3", *options, root], stderr=subprocess.DEVNULL)
    try:
        wait_for(address)
        yield Server(f"http://{address}", server)
    finally:
        server.terminate()
        server.wait(timeout=60)


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
