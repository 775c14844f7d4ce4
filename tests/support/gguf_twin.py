# SPDX-License-Identifier: Apache-2.0
"""A GGUF file without its long lists, for libraries that take minutes over a vocabulary."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from unit.gguf.gguf_bytes import ALIGNMENT, VALUE_TYPES, front, padded

SIZES = {number: struct.calcsize(code) for number, code in VALUE_TYPES.values() if code}
STRING, ARRAY = VALUE_TYPES["STRING"][0], VALUE_TYPES["ARRAY"][0]


def write_twin(source: Path, target: Path, pairs: Iterable[bytes] = ()) -> Path:
    """``source`` with ``pairs`` in place of its metadata arrays, all the rest the same to the bit. Returns ``target``.

    The header is walked by the text of the format (docs/gguf.md of ggml-org/ggml): little endian, version 3, aligned
    to 32 bytes.
    """
    data = np.memmap(source, mode="r").data
    magic, version, tensors, count = struct.unpack_from("<4sIQQ", data)
    assert (magic, version) == (b"GGUF", 3)
    kept, at = [*pairs], len(front(0, 0))
    for _ in range(count):
        value = _after_text(data, at)
        end, is_array = _after_value(data, value), _number(data, value) == ARRAY
        kept += [] if is_array else [bytes(data[at:end])]
        at = end
    table = at
    for _ in range(tensors):
        dims = _after_text(data, at)
        at = dims + 4 + 8 * _number(data, dims) + 4 + 8
    header = front(tensors, len(kept)) + b"".join(kept) + bytes(data[table:at])
    with target.open("wb") as file:
        file.write(padded(header))
        file.write(data[-(-at // ALIGNMENT) * ALIGNMENT :])
    return target


def _after_value(data: memoryview, at: int) -> int:
    kind, at = _number(data, at), at + 4
    if kind == STRING:
        return _after_text(data, at)
    if kind != ARRAY:
        return at + SIZES[kind]
    (item, count), at = struct.unpack_from("<IQ", data, at), at + 12
    if item != STRING:
        return at + SIZES[item] * int(count)
    for _ in range(count):
        at = _after_text(data, at)
    return at


def _after_text(data: memoryview, at: int) -> int:
    return at + 8 + int(struct.unpack_from("<Q", data, at)[0])


def _number(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
