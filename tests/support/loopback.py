# SPDX-License-Identifier: Apache-2.0
"""The frame of servers on loopback: each in a thread of its own, and gone at the end of a block."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_L = TypeVar("_L", bound="Loopback")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no fault of a test's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Loopback:
    """Answers by ``handler``, whose class attribute ``served`` is this object."""

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self._over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (handler,), {"served": self}))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self: _L) -> Iterator[_L]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self.stop()
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"

    def stop(self) -> None:
        """No connection is taken any more."""
        self._server.shutdown()
        self._server.server_close()

    def wait(self, seconds: float) -> None:
        """Let a request wait so long, or until the server's end."""
        self._over.wait(seconds)
