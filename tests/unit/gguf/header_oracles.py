# SPDX-License-Identifier: Apache-2.0
"""Two readers of headers that are not ours: the gguf package's, and ggml's C code (gguf.cpp).

Both give `Seen`: version, alignment, metadata, and tensors with shapes in torch order and absolute offsets.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import gguf
from unit.gguf.gguf_bytes import VALUE_TYPES
from unit.gguf.oracles import library, traits


class Seen(NamedTuple):
    version: int
    alignment: int
    metadata: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int, int, int]]
    """Name -> shape, type id, offset, bytes."""


def by_gguf(path: Path) -> Seen:
    """The gguf package's view; nested arrays are flat. Raises what `GGUFReader` raises."""
    reader = gguf.GGUFReader(path)
    fields = {name: _contents(field) for name, field in reader.fields.items()}
    version = fields.pop("GGUF.version")
    fields.pop("GGUF.tensor_count")
    fields.pop("GGUF.kv_count")
    tensors = {
        each.name: (tuple(reversed(each.shape.tolist())), int(each.tensor_type), each.data_offset, each.n_bytes)
        for each in reader.tensors
    }
    return Seen(version, int(reader.alignment), fields, tensors)


def _contents(field: Any) -> Any:
    """``field.contents()``, which has no answer for strings that are no UTF-8."""
    if field.types[-1] != gguf.GGUFValueType.STRING:
        return field.contents()
    strings = [field.parts[index].tobytes().decode("utf-8", "backslashreplace") for index in field.data]
    return strings if field.types[0] == gguf.GGUFValueType.ARRAY else strings[0]


class _Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


_INT, _PTR, _STR, _I64, _SIZE = ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
_RESULTS = {
    "gguf_init_from_file": (_PTR, [_STR, _Params]),
    "gguf_free": (None, [_PTR]),
    "gguf_get_version": (ctypes.c_uint32, [_PTR]),
    "gguf_get_alignment": (_SIZE, [_PTR]),
    "gguf_get_data_offset": (_SIZE, [_PTR]),
    "gguf_get_n_kv": (_I64, [_PTR]),
    "gguf_get_n_tensors": (_I64, [_PTR]),
    "gguf_get_key": (_STR, [_PTR, _I64]),
    "gguf_get_kv_type": (_INT, [_PTR, _I64]),
    "gguf_get_arr_type": (_INT, [_PTR, _I64]),
    "gguf_get_arr_n": (_SIZE, [_PTR, _I64]),
    "gguf_get_arr_data": (_PTR, [_PTR, _I64]),
    "gguf_get_arr_str": (_STR, [_PTR, _I64, _SIZE]),
    "gguf_get_val_str": (_STR, [_PTR, _I64]),
    "gguf_get_val_data": (_PTR, [_PTR, _I64]),
    "gguf_get_tensor_name": (_STR, [_PTR, _I64]),
    "gguf_get_tensor_type": (_INT, [_PTR, _I64]),
    "gguf_get_tensor_offset": (_SIZE, [_PTR, _I64]),
    "gguf_get_tensor_size": (_SIZE, [_PTR, _I64]),
    "gguf_get_tensor_ne": (ctypes.POINTER(ctypes.c_int64), [_PTR, _I64]),
}
_C_TYPES = {
    type_id: getattr(ctypes, f"c_{name.lower()}")
    for name, (type_id, _) in VALUE_TYPES.items()
    if name.startswith(("INT", "UINT"))
} | {6: ctypes.c_float, 7: ctypes.c_bool, 12: ctypes.c_double}


@lru_cache(maxsize=1)
def _functions() -> Any:
    loaded = library()
    for name, (result, arguments) in _RESULTS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def by_ggml(path: Path) -> Seen | None:
    """The view of ggml's C code, trailing dimensions of 1 dropped as it does; None where it refuses the file."""
    c = _functions()
    context = c.gguf_init_from_file(str(path).encode(), _Params(True, None))
    if not context:
        return None
    try:
        metadata = {_text(c.gguf_get_key(context, i)): _value(c, context, i) for i in range(c.gguf_get_n_kv(context))}
        start = c.gguf_get_data_offset(context)
        tensors = {
            _text(c.gguf_get_tensor_name(context, i)): (
                _shape(c, context, i),
                c.gguf_get_tensor_type(context, i),
                start + c.gguf_get_tensor_offset(context, i),
                c.gguf_get_tensor_size(context, i),
            )
            for i in range(c.gguf_get_n_tensors(context))
        }
        return Seen(c.gguf_get_version(context), c.gguf_get_alignment(context), metadata, tensors)
    finally:
        c.gguf_free(context)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _shape(c: Any, context: int, index: int) -> tuple[int, ...]:
    return without_outer_ones(tuple(reversed(c.gguf_get_tensor_ne(context, index)[:4])))


def without_outer_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _value(c: Any, context: int, index: int) -> Any:
    kind = c.gguf_get_kv_type(context, index)
    if kind == VALUE_TYPES["STRING"][0]:
        return _text(c.gguf_get_val_str(context, index))
    if kind != VALUE_TYPES["ARRAY"][0]:
        return ctypes.cast(c.gguf_get_val_data(context, index), ctypes.POINTER(_C_TYPES[kind])).contents.value
    item, count = c.gguf_get_arr_type(context, index), c.gguf_get_arr_n(context, index)
    if item == VALUE_TYPES["STRING"][0]:
        texts = [c.gguf_get_arr_str(context, index, i) for i in range(count)]
        return [_text(text) for text in texts]
    data = ctypes.cast(c.gguf_get_arr_data(context, index), ctypes.POINTER(_C_TYPES[item]))
    return data[:count] if count else []


def ggml_sizes(type_id: int) -> tuple[str, int, int]:
    """Name, elements of a block and bytes of a block, as ggml's C code has them."""
    found = traits(type_id)
    return (found.type_name or b"").decode(), found.blck_size, found.type_size


def same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals NaN and nested arrays equal their flat form."""
    if isinstance(one, list) and isinstance(other, list):
        one, other = list(_flat(one)), list(_flat(other))
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


def _flat(values: list[Any]) -> Any:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value
