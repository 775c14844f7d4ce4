# SPDX-License-Identifier: Apache-2.0
"""A store on loopback, and an environment in which nothing leaves this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.object_server import ObjectServer, only_loopback


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer({}).running() as running:
        only_loopback(monkeypatch, running.endpoint)
        yield running
