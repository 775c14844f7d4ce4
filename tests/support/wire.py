# SPDX-License-Identifier: Apache-2.0
"""A forwarder on loopback that counts what a server sends: bytes on the wire, response headers included."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Wire:
    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.sent = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            asking = threading.Thread(target=self._pump, args=(client, server, False), daemon=True)
            asking.start()
            self._pump(server, client, True)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            asking.join()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                if counted:
                    with self._lock:
                        self.sent += len(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@contextmanager
def counted(endpoint: str) -> Iterator[Wire]:
    """Yields a `Wire` whose own ``endpoint`` leads to this one."""
    wire = Wire(endpoint)
    threading.Thread(target=wire.accept, daemon=True).start()
    try:
        yield wire
    finally:
        wire.close()
