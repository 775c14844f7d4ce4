# SPDX-License-Identifier: Apache-2.0
"""The metadata of one file: a mapping whose values are decoded when they are asked for.

A vocabulary is most of a header, and nobody who loads weights looks at it: long values stay in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weight_readers_files import State, open_regular
from weight_readers_gguf.header._values import Slot, decode
from weight_readers_gguf.header._window import Window

KEPT_BYTES = 64 * 1024
"""The longest value that is kept as bytes."""
ALL_KEPT_BYTES = 2 * 1024 * 1024
"""All that is kept of one file."""


class Metadata(Mapping[str, Any]):
    """Key -> value of one file, in its order: an int, float, bool or str, or a list of one of them.

    Holds no descriptor. Values of more than 64 KiB are read from the file at each access, which raises a
    `CheckpointError` where the file is gone or was written to since.
    """

    def __init__(self, path: str, state: State) -> None:
        self._path = path
        self._state = state
        self._slots: dict[str, Slot] = {}
        self._kept: dict[str, bytes] = {}
        self._kept_bytes = 0

    def __getitem__(self, key: str) -> Any:
        slot = self._slot(key)
        raw = self._kept.get(key)
        return decode(slot, self._read(slot) if raw is None else raw)

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def __repr__(self) -> str:
        return f"<metadata of {self._path}: {len(self)} keys>"

    def type_name(self, key: str) -> str:
        """The type of a value as the file has it: ``UINT32``, ``STRING``, ``ARRAY[INT32]``."""
        return self._slot(key).type_name

    def add(self, key: str, slot: Slot, window: Window) -> None:
        """Take up a value that ``window`` has just passed over."""
        self._slots[key] = slot
        size = slot.end - slot.begin
        if size <= min(KEPT_BYTES, ALL_KEPT_BYTES - self._kept_bytes):
            self._kept[key] = window.copy(slot.begin, slot.end)
            self._kept_bytes += size

    def _slot(self, key: str) -> Slot:
        if key not in self._slots:
            raise KeyError(f"the metadata of {self._path} has no key {key!r}")
        return self._slots[key]

    def _read(self, slot: Slot) -> bytes:
        with open_regular(self._path) as file:
            window = Window(file, self._path)
            self._state.require(window.state, path=self._path)
            raw = window.copy(slot.begin, slot.end)
            window.require_unchanged()
            return raw
