# SPDX-License-Identifier: Apache-2.0
"""Three dequantizers that are not ours: ggml's C code, libgguf, and the gguf package.

Only ggml is a lineage of its own (the other two port its formulas), and its C code is the judge. All take the
name of a type and uint8 ``[..., row_bytes]`` of whole blocks, and return float32 ``[..., elements]``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import gguf
import libgguf
import numpy as np

from weight_readers_gguf.types import BY_NAME

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Oracle = Callable[[str, Bytes], Floats]


class Traits(ctypes.Structure):
    """``ggml_type_traits`` of ggml.h."""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    ]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """libggml-base of the wheel libggml-python."""
    spec = find_spec("libggml")
    assert spec is not None, "pip install libggml-python"
    assert spec.origin is not None
    loaded = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("lib*/libggml-base.so"))))
    loaded.ggml_get_type_traits.argtypes = [ctypes.c_int]
    loaded.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return loaded


def traits(type_id: int) -> Traits:
    return library().ggml_get_type_traits(type_id).contents  # type: ignore[no-any-return]


def ggml_has(name: str) -> bool:
    return bool(traits(BY_NAME[name].id).to_float)


def ggml(name: str, packed: Bytes) -> Floats:
    """``to_float`` of ggml's C code, one call per row."""
    found = traits(BY_NAME[name].id)
    to_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(found.to_float)
    packed = np.ascontiguousarray(packed)
    blocks, rest = divmod(packed.shape[-1], found.type_size)
    assert rest == 0
    out = np.empty((*packed.shape[:-1], blocks * found.blck_size), np.float32)
    rows, floats = packed.reshape(-1, packed.shape[-1]), out.reshape(-1, out.shape[-1])
    for row, target in zip(rows, floats, strict=True):
        to_float(row.ctypes.data, target.ctypes.data, target.size)
    return out


def libgguf_has(name: str) -> bool:
    return BY_NAME[name].id in libgguf._SUPPORTED_QUANTIZED_QTYPES


def by_libgguf(name: str, packed: Bytes) -> Floats:
    return libgguf.dequantize_rows(packed, BY_NAME[name].id)  # type: ignore[no-any-return]


def gguf_has(name: str) -> bool:
    return BY_NAME[name].id in {each.value for each in gguf.quants._type_traits}


def by_gguf(name: str, packed: Bytes) -> Floats:
    with np.errstate(all="ignore"):
        return gguf.dequantize(np.ascontiguousarray(packed), gguf.GGMLQuantizationType(BY_NAME[name].id))


def oracles_of(name: str) -> dict[str, Oracle]:
    """The oracles that know type ``name``."""
    known: dict[str, tuple[Callable[[str], bool], Oracle]] = {
        "ggml": (ggml_has, ggml),
        "libgguf": (libgguf_has, by_libgguf),
        "gguf": (gguf_has, by_gguf),
    }
    return {who: oracle for who, (has, oracle) in known.items() if has(name)}


def assert_same_floats(expected: Floats, actual: Floats) -> None:
    """Bit for bit, the sign of zero included; NaN where NaN is, whatever its payload."""
    assert expected.shape == actual.shape
    assert expected.dtype == actual.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(nan, np.isnan(actual), err_msg="NaN in other places")
    differ = (expected.view(np.uint32) != actual.view(np.uint32)) & ~nan
    where = np.argwhere(differ)
    assert not len(where), (
        f"{len(where)} of {expected.size} elements differ, first at {where[0].tolist()}: "
        f"expected {expected[differ][0]!r}, found {actual[differ][0]!r}"
    )
