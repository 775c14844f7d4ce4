# SPDX-License-Identifier: Apache-2.0
"""The values of metadata: passed over where they lie in the file, and decoded from their bytes.

Types: ``gguf_metadata_value_type`` in docs/gguf.md of ggml-org/ggml.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from weight_readers_gguf.header import _limits as limits
from weight_readers_gguf.header._window import U32, U64, Window


class ValueType(NamedTuple):
    """A type of metadata; ``code`` is that of struct, for the types of a fixed size."""

    name: str
    code: str = ""

    @property
    def size(self) -> int:
        """Bytes of one value; 0 for strings and arrays."""
        return struct.calcsize(f"<{self.code}")


VALUE_TYPES: Mapping[int, ValueType] = {
    0: ValueType("UINT8", "B"),
    1: ValueType("INT8", "b"),
    2: ValueType("UINT16", "H"),
    3: ValueType("INT16", "h"),
    4: ValueType("UINT32", "I"),
    5: ValueType("INT32", "i"),
    6: ValueType("FLOAT32", "f"),
    7: ValueType("BOOL", "?"),
    8: ValueType("STRING"),
    9: ValueType("ARRAY"),
    10: ValueType("UINT64", "Q"),
    11: ValueType("INT64", "q"),
    12: ValueType("FLOAT64", "d"),
}
INTEGERS = frozenset({"UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64"})
STRING, ARRAY = 8, 9

_ARRAY_HEAD = struct.Struct("<IQ")
_LEAST_BYTES = {STRING: U64.size, ARRAY: _ARRAY_HEAD.size}


class Slot(NamedTuple):
    """Where in the file a value lies, and of what type it is.

    ``item`` is the type of the items of an array, ``length`` their number; of a text it is that of its bytes, else 1.
    """

    type: int
    item: int | None
    length: int
    begin: int
    end: int

    @property
    def type_name(self) -> str:
        """``UINT32``, or ``ARRAY[UINT32]``."""
        name = VALUE_TYPES[self.type].name
        return name if self.item is None else f"{name}[{VALUE_TYPES[self.item].name}]"


def pass_value(window: Window) -> Slot:
    """Read the type of a value and move over the value."""
    type_id, begin = _type(window), window.position
    item, length = None, 1
    if type_id == ARRAY:
        item, length = _pass_array(window, 1)
    elif type_id == STRING:
        length = window.number()
        window.skip(length)
    else:
        window.skip(VALUE_TYPES[type_id].size)
    return Slot(type_id, item, length, begin, window.position)


def _type(window: Window) -> int:
    type_id = window.number(U32)
    if type_id not in VALUE_TYPES:
        raise window.error("an unknown type of metadata", expected="one of 0 to 12", found=str(type_id))
    return type_id


def _pass_array(window: Window, depth: int) -> tuple[int, int]:
    """Move over an array; returns the type and the number of its items."""
    item, count = _type(window), window.number()
    if size := VALUE_TYPES[item].size:
        window.skip(count * size)
        return item, count
    if depth == limits.MAX_DEPTH and item == ARRAY:
        raise window.error("arrays within arrays", expected=f"at most {limits.MAX_DEPTH} levels")
    window.count_items(count, _LEAST_BYTES[item], cost=limits.NESTED_COST if item == ARRAY else 1)
    if item == STRING:
        window.skip_strings(count)
        return item, count
    for _ in range(count):
        _pass_array(window, depth + 1)
    return item, count


def decode(slot: Slot, raw: bytes) -> Any:
    """The value in ``raw``: an int, float, bool, str, or a list of one of them.

    Bytes of a string that are no UTF-8 stay readable as ``\\xff``: a vocabulary may hold any.
    """
    if slot.type == ARRAY:
        return _decode_array(raw, 0)[0]
    if slot.type == STRING:
        return _decoded(raw[U64.size :])
    return struct.unpack(f"<{VALUE_TYPES[slot.type].code}", raw)[0]


def leading_text(raw: bytes, most: int) -> str:
    """More than ``most`` characters of the text in ``raw``, or all of a text that has no more; no longer part of it is
    decoded. ``raw`` may be the first ``12 + 4 * most`` bytes of the value: a character has at most 4.
    """
    return _decoded(raw[U64.size : U64.size + 4 * (most + 1)])


def _decode_array(raw: bytes, at: int) -> tuple[list[Any], int]:
    item, count = _ARRAY_HEAD.unpack_from(raw, at)
    at += _ARRAY_HEAD.size
    if kind := VALUE_TYPES[item].code:
        return list(struct.unpack_from(f"<{count}{kind}", raw, at)), at + count * VALUE_TYPES[item].size
    if item == STRING:
        return _decode_strings(raw, at, count)
    nested = []
    for _ in range(count):
        value, at = _decode_array(raw, at)
        nested.append(value)
    return nested, at


def _decode_strings(raw: bytes, at: int, count: int) -> tuple[list[str], int]:
    strings = []
    for _ in range(count):
        begin = at + U64.size
        at = begin + U64.unpack_from(raw, at)[0]
        strings.append(_decoded(raw[begin:at]))
    return strings, at


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")
