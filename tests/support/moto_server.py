# SPDX-License-Identifier: Apache-2.0
"""moto's AWS on loopback: S3 with checksums and multipart uploads, and IAM that can be told to look at the keys."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Moto:
    """A running server."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def client(self, service: str) -> Any:
        import boto3

        keys = {"aws_access_key_id": "setup", "aws_secret_access_key": "setup"}
        return boto3.client(service, endpoint_url=self.endpoint, region_name="us-east-1", **keys)

    def check_keys(self, *, after: int) -> None:
        """Look at the keys and rights of requests from number ``after`` on."""
        address = f"{self.endpoint}/moto-api/reset-auth"
        plain = {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(address, str(after).encode(), plain, method="POST")):
            pass


@contextmanager
def moto() -> Iterator[Moto]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "1000000"}
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        _wait_for(port)
        yield Moto(f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait(timeout=60)


def _wait_for(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"moto does not listen after {seconds:g} seconds")
