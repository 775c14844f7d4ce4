# SPDX-License-Identifier: Apache-2.0
"""Notes that ranks leave for each other in the store of torch.distributed. No call here waits for another rank."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from weight_readers import RankLostError

T = TypeVar("T")

_PIECE = 1 << 20
"""A store takes values of at most 8 MiB."""


class Board:
    """A corner of ``store`` under ``prefix``. Raises RankLostError where the store does not answer any more."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def below(self, name: str) -> Board:
        return Board(self._store, f"{self._prefix}/{name}")

    def put(self, key: str, value: bytes) -> None:
        self._ask(self._store.set, self._key(key), value)

    def get(self, key: str) -> bytes:
        """What stands there; it has to be known that something does."""
        return bytes(self._ask(self._store.get, self._key(key)))

    def has(self, key: str) -> bool:
        return bool(self._ask(self._store.check, [self._key(key)]))

    def find(self, key: str) -> bytes | None:
        return self.get(key) if self.has(key) else None

    def count(self, key: str) -> int:
        """One more at ``key``; returns how many that makes."""
        return int(self._ask(self._store.add, self._key(key), 1))

    def counted(self, key: str) -> int:
        """How many that were."""
        return int(self._ask(self._store.add, self._key(key), 0))

    def wipe(self, key: str) -> None:
        self._ask(self._store.delete_key, self._key(key))

    def put_long(self, key: str, value: bytes) -> None:
        """A value of any length. It is there, for `has` and `get_long`, once all of it is."""
        packed = zlib.compress(value, 1)
        pieces = [packed[at : at + _PIECE] for at in range(0, len(packed), _PIECE)]
        for number, piece in enumerate(pieces):
            self.put(f"{key}/{number}", piece)
        self.put(key, b"%d" % len(pieces))

    def get_long(self, key: str) -> bytes:
        return zlib.decompress(b"".join(self.get(f"{key}/{number}") for number in range(int(self.get(key)))))

    def wipe_long(self, key: str) -> None:
        for number in range(int(self.get(key))):
            self.wipe(f"{key}/{number}")

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except RuntimeError as error:  # DistStoreError and DistNetworkError, and what older torch has for them
            first = str(error).partition("\n")[0]
            raise RankLostError(
                f"the store that the ranks meet at does not answer any more ({first}): the process that keeps it, "
                "the first rank or its launcher, is gone",
                fix="Its own output says why; start all ranks again",
            ) from error
