# SPDX-License-Identifier: Apache-2.0
"""``make demo-s3``: serve the demo's checkpoint from an S3 on this machine, and load it from there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from run import HERE, run

RCLONE = Path(sys.executable).with_name("rclone")
KEY, SECRET = "demo-key", "demo-secret"


@contextmanager
def served(root: Path) -> Iterator[str]:
    """An S3 on loopback whose buckets are the folders in ``root``; it checks signatures. Yields its endpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = ["--addr", address, "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull, "--vfs-cache-mode", "off"]
    server = subprocess.Popen([RCLONE, "serve", "s3", *options, root], stderr=subprocess.DEVNULL)
    try:
        _wait_for(address)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(timeout=60)


def _wait_for(address: str, seconds: float = 30) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"the S3 server did not come up at {address} within {seconds:g} seconds")


def main() -> None:
    sys.path.insert(0, str(HERE))
    import demo_model

    demo_model.save()
    folder = Path(demo_model.FOLDER).resolve()
    with served(folder.parent.parent) as endpoint:
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        reference = f"s3://{folder.parent.name}/{folder.name}"
        run("explain", reference, "--into-existing")
        run("load", reference, "--into", "demo_model:build", "--then", "demo_model:check")


if __name__ == "__main__":
    main()
