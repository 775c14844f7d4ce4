# SPDX-License-Identifier: Apache-2.0
"""The metadata of one file: a mapping whose values are decoded when they are asked for.

A vocabulary is most of a header, and nobody who loads weights looks at it: long values stay in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weight_readers_files import State, open_regular
from weight_readers_gguf.header._values import ARRAY, INTEGERS, STRING, Slot, decode, leading_text
from weight_readers_gguf.header._window import Window

KEPT_BYTES = 64 * 1024
"""The longest value that is kept as bytes."""
ALL_KEPT_BYTES = 2 * 1024 * 1024
"""All that is kept of one file, beside small values."""
SMALL_BYTES = 64
"""A value of so many bytes is always kept: numbers, shapes, the name of an architecture."""
MOST_SHOWN = 1000
"""The most characters that are shown of a text."""
BEGINNING_BYTES = 4096
"""What is kept of a text that is not kept whole: enough to show so many characters."""


class Metadata(Mapping[str, Any]):
    """Key -> value of one file, in its order: an int, float, bool or str, or a list of one of them.

    Holds no descriptor. Values of more than 64 KiB are read from the file at each access, which raises a
    `CheckpointError` where the file is gone or was written to since. A value may be as large as a header (1 GiB), and
    many times that when it is decoded: ask `type_name`, `length`, `integer` or `shown` first, which cost next to
    nothing whatever the file says.
    """

    def __init__(self, path: str, state: State) -> None:
        self._path = path
        self._state = state
        self._slots: dict[str, Slot] = {}
        self._kept: dict[str, bytes] = {}
        self._beginnings: dict[str, bytes] = {}
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

    def length(self, key: str) -> int:
        """How many items an array has, and how many bytes a text; 1 for every other value."""
        return self._slot(key).length

    def integer(self, key: str) -> int | None:
        """The value if it is of an integer type, else None. Of no other type is anything decoded."""
        return int(self[key]) if self.type_name(key) in INTEGERS else None

    def shown(self, key: str, most: int = 80) -> str:
        """The value for people, in little more than ``most`` characters (at most 1000), without reading the file.

        Of an array its type; of a longer text its beginning and how many bytes it has.
        """
        slot, most = self._slot(key), min(most, MOST_SHOWN)
        if slot.type == ARRAY:
            return slot.type_name
        if slot.type != STRING:
            return str(self[key])
        beginning = self._kept.get(key, self._beginnings.get(key))
        if beginning is None:
            return f"({slot.length} bytes of text)"
        text = leading_text(beginning, most)
        return text if len(text) <= most else f"{text[:most]}... ({slot.length} bytes)"

    def add(self, key: str, slot: Slot, window: Window) -> None:
        """Take up a value that ``window`` has just passed over."""
        self._slots[key] = slot
        size, left = slot.end - slot.begin, ALL_KEPT_BYTES - self._kept_bytes
        if size <= SMALL_BYTES:
            self._kept[key] = window.copy(slot.begin, slot.end)
        elif size <= min(KEPT_BYTES, left):
            self._kept[key] = window.copy(slot.begin, slot.end)
            self._kept_bytes += size
        elif slot.type == STRING and left >= BEGINNING_BYTES:
            self._beginnings[key] = window.copy(slot.begin, min(slot.end, slot.begin + BEGINNING_BYTES))
            self._kept_bytes += BEGINNING_BYTES

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
