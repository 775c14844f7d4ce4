# SPDX-License-Identifier: Apache-2.0
"""GGUF files written by hand with struct, valid and hostile: no code under test has a part in them.

    write_gguf(tmp_path / "m.gguf",
               {"a.weight": (0, (2, 32), bytes(256)), "b.weight": (2, (4, 64), bytes(144))},
               {"general.architecture": "llama", "n": ("UINT64", 3), "list": ("INT32", [1, 2]), "x": [1.5, 2.5]})

The pieces (`text`, `pair`, `info`, `front`) put together headers that no writer would make.

Format: docs/gguf.md of ggml-org/ggml.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ALIGNMENT = 32
VALUE_TYPES = {
    "UINT8": (0, "B"),
    "INT8": (1, "b"),
    "UINT16": (2, "H"),
    "INT16": (3, "h"),
    "UINT32": (4, "I"),
    "INT32": (5, "i"),
    "FLOAT32": (6, "f"),
    "BOOL": (7, "?"),
    "STRING": (8, ""),
    "ARRAY": (9, ""),
    "UINT64": (10, "Q"),
    "INT64": (11, "q"),
    "FLOAT64": (12, "d"),
}
"""Name of a metadata type -> its id in the file, and its struct code."""

Tensors = Mapping[str, tuple[int, Sequence[int], bytes]]
"""Name -> (ggml type id, shape in torch order, payload)."""


def write_gguf(
    path: Path, tensors: Tensors | None = None, metadata: Mapping[str, Any] | None = None, **kw: Any
) -> Path:
    """Write `gguf_bytes` with the same arguments to ``path``, and return it."""
    path.write_bytes(gguf_bytes(tensors, metadata, **kw))
    return path


def gguf_bytes(
    tensors: Tensors | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    version: int = 3,
    alignment: int = ALIGNMENT,
    offsets: Mapping[str, int] | None = None,
    order: str = "<",
) -> bytes:
    """A whole file, its payloads in the order of ``tensors`` with as little padding as there can be.

    metadata: a value (bool, int, float, str, or a list of one of them), or ``(type name, value)``; a list as that
        value is an array of the type.
    alignment: written as ``general.alignment`` unless it is 32.
    offsets: name -> offset within the data section, for tensors that are not to lie one behind the other.
    order: ``<`` little endian, ``>`` big endian.
    """
    tensors, metadata = tensors or {}, dict(metadata or {})
    if alignment != ALIGNMENT:
        metadata["general.alignment"] = ("UINT32", alignment)
    data, placed = _payloads(tensors, alignment, offsets or {})
    header = front(len(tensors), len(metadata), version=version, order=order)
    header += b"".join(pair(key, value, order=order) for key, value in metadata.items())
    header += b"".join(
        info(name, shape[::-1], type_id, placed[name], order=order) for name, (type_id, shape, _) in tensors.items()
    )
    return padded(header, alignment) + data


def _payloads(tensors: Tensors, alignment: int, offsets: Mapping[str, int]) -> tuple[bytes, dict[str, int]]:
    data, placed, end = bytearray(), {}, 0
    for name, (_, _, payload) in tensors.items():
        placed[name] = begin = offsets.get(name, -(-end // alignment) * alignment)
        end = begin + len(payload)
        data.extend(bytes(max(0, end - len(data))))
        data[begin:end] = payload
    return padded(bytes(data), alignment), placed


def padded(data: bytes, alignment: int = ALIGNMENT) -> bytes:
    return data + bytes(-len(data) % alignment)


def front(tensors: int, pairs: int, *, version: int = 3, order: str = "<") -> bytes:
    """Magic, version and the two counts, which may be any number."""
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, pairs)


def text(value: str | bytes, *, length: int | None = None, order: str = "<") -> bytes:
    """A string; ``length`` is written in place of the true one."""
    encoded = value if isinstance(value, bytes) else value.encode()
    return struct.pack(f"{order}Q", len(encoded) if length is None else length) + encoded


def pair(key: str | bytes, value: Any, *, order: str = "<") -> bytes:
    """One key with its value, as in ``metadata`` of `gguf_bytes`."""
    type_name, plain = value if isinstance(value, tuple) else (_type_of(value), value)
    return text(key, order=order) + _typed("ARRAY" if isinstance(plain, list) else type_name, type_name, plain, order)


def raw_pair(key: str | bytes, type_id: int, raw: bytes) -> bytes:
    """One key with a type id and bytes of any kind."""
    return text(key) + struct.pack("<I", type_id) + raw


def array(item_type: int, count: int, raw: bytes = b"") -> bytes:
    """The value of an array: a type id, a count and bytes of any kind."""
    return struct.pack("<IQ", item_type, count) + raw


def info(
    name: str | bytes, dims: Sequence[int], type_id: int, offset: int, *, rank: int | None = None, order: str = "<"
) -> bytes:
    """One entry of the table of tensors; ``dims`` in the order of the file, ``rank`` in place of their number."""
    count = len(dims) if rank is None else rank
    return text(name, order=order) + struct.pack(f"{order}I{len(dims)}QIQ", count, *dims, type_id, offset)


def _type_of(value: Any) -> str:
    """The type of a value that comes without one; of a list, that of its items."""
    if isinstance(value, list):
        return "UINT32" if not value else "ARRAY" if isinstance(value[0], list) else _type_of(value[0])
    if isinstance(value, bool):
        return "BOOL"
    if isinstance(value, int):
        return "INT32" if value < 0 else "UINT32"
    return "FLOAT32" if isinstance(value, float) else "STRING"


def _typed(written: str, item: str, value: Any, order: str) -> bytes:
    return struct.pack(f"{order}I", VALUE_TYPES[written][0]) + _value(written, item, value, order)


def _value(written: str, item: str, value: Any, order: str) -> bytes:
    if written == "STRING":
        return text(value, order=order)
    if written != "ARRAY":
        return struct.pack(order + VALUE_TYPES[written][1], value)
    if item == "ARRAY":
        nested = [_value("ARRAY", _type_of(each), each, order) for each in value]
        return struct.pack(f"{order}IQ", VALUE_TYPES["ARRAY"][0], len(value)) + b"".join(nested)
    items = [_value(item, item, each, order) for each in value]
    return struct.pack(f"{order}IQ", VALUE_TYPES[item][0], len(value)) + b"".join(items)
