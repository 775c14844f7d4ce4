# SPDX-License-Identifier: Apache-2.0
"""One tensor of a header: the types of its fields, its dtype, its shape and the size of its byte range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from weight_readers.errors import CheckpointError, ShapeError, TensorLayoutError
from weight_readers.tensors import TensorKind
from weight_readers_safetensors._plain import plain_shape
from weight_readers_safetensors.dtypes import DTYPES, Dtype, unknown_dtype
from weight_readers_safetensors.ranges import stored_shape

MAX_DIMS = 64
"""torch makes tensors of more dimensions and can neither sum over one nor hand them to numpy (measured, 2.13)."""
MAX_ELEMENTS = 2**63 - 1
"""torch counts sizes and strides in signed 64-bit integers."""
UNKNOWN = "unknown"
"""``TensorMeta.dtype`` of a listed tensor whose dtype safetensors does not have."""

_JSON_WORDS = {dict: "an object", list: "a list", str: "a string", bool: "a bool", type(None): "null"}


class MalformedEntryError(Exception):
    """The entry is no entry; says what is wrong with it, without file and name."""


class Fields(NamedTuple):
    """The fields of an entry, of the right types; the numbers are not checked yet."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


Sound = TensorKind | None


@lru_cache(maxsize=1024)
def sound_kind(dtype: str, shape_text: str) -> Sound:
    """What a plain entry's dtype and shape say; None where something is wrong with them.

    Cached by their texts, because the layers of a model share a handful.
    """
    shape = plain_shape(shape_text) or ()
    size = geometry(dtype, shape)
    return None if size.nbytes is None else TensorKind(size.torch_name, dtype, shape, size.stored_shape, size.nbytes)


def fields_of(entry: Any) -> Fields:
    """The fields of a JSON value. Raises `MalformedEntryError` for a wrong type.

    Further fields are allowed, as the safetensors library allows them.
    """
    if not isinstance(entry, dict):
        raise MalformedEntryError(f"the entry is {json_word(entry)}, not an object")
    if missing := [name for name in ("dtype", "shape", "data_offsets") if name not in entry]:
        raise MalformedEntryError(f"the entry has no {' and no '.join(missing)}")
    dtype = entry["dtype"]
    if not isinstance(dtype, str):
        raise MalformedEntryError(f"dtype is {json_word(dtype)}, not a string")
    shape = _whole_numbers("shape", entry["shape"])
    offsets = _whole_numbers("data_offsets", entry["data_offsets"])
    if len(offsets) != 2:
        raise MalformedEntryError(f"data_offsets has {len(offsets)} numbers, not 2")
    return Fields(dtype, shape, *offsets)


def json_word(value: Any) -> str:
    """What JSON calls a value, with its article; numbers and bools with the value itself."""
    if isinstance(value, bool):
        return f"the bool {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"the number {str(value)[:24]}"
    return _JSON_WORDS[type(value)]


class Geometry(NamedTuple):
    """What dtype and shape say about a tensor; ``nbytes`` is None where ``fault`` says what is wrong."""

    torch_name: str
    stored_shape: tuple[int, ...]
    nbytes: int | None
    fault: str | None


@lru_cache(maxsize=1024)
def geometry(source_dtype: str, shape: tuple[int, ...]) -> Geometry:
    """Checked sizes; cached, because the layers of a model share a handful of shapes."""
    dtype = DTYPES.get(source_dtype)
    torch_name = dtype.torch_name if dtype else UNKNOWN
    if fault := _shape_fault(shape, dtype):
        return Geometry(torch_name, shape[: MAX_DIMS + 1], None, fault)
    if dtype is None:
        return Geometry(torch_name, shape, None, None)
    return Geometry(torch_name, stored_shape(dtype.name, shape), math.prod(shape) * dtype.bits // 8, None)


def problems_of(name: str, fields: Fields, size: Geometry, path: str) -> Sequence[CheckpointError]:
    """All that is wrong with one tensor by itself, ``size`` being its geometry."""
    torch_name, _, nbytes, fault = size
    held = fields.end - fields.begin
    if held == nbytes:
        return ()
    problems: list[CheckpointError] = []
    if torch_name == UNKNOWN:
        problems.append(unknown_dtype(fields.dtype, path=path, tensor=name))
    if fault:
        problems.append(ShapeError(fault, path=path, tensor=name, found=_shown(fields.shape)))
    if held < 0:
        what, found = "data_offsets end before they begin", f"[{fields.begin}, {fields.end}]"
        problems.append(TensorLayoutError(what, path=path, tensor=name, found=found))
    elif nbytes is not None:
        what = f"data_offsets [{fields.begin}, {fields.end}] do not hold {fields.dtype} of shape {_shown(fields.shape)}"
        expected, found = f"{nbytes} bytes", f"{held} bytes"
        problems.append(TensorLayoutError(what, path=path, tensor=name, expected=expected, found=found))
    return problems


def listed(fields: Fields, size: Geometry) -> TensorKind:
    """The tensor as `inspect` lists it, whatever is wrong with it."""
    dtype, shape, begin, end = fields
    return TensorKind(size.torch_name, dtype, shape[: MAX_DIMS + 1], size.stored_shape, max(0, end - begin))


def _whole_numbers(field: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise MalformedEntryError(f"{field} is {json_word(value)}, not a list")
    for place, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise MalformedEntryError(f"{field}[{place}] is {json_word(item)}, not a whole number")
        if item < 0:
            raise MalformedEntryError(f"{field}[{place}] is negative: {str(item)[:24]}")
    return tuple(value)


def _shape_fault(shape: tuple[int, ...], dtype: Dtype | None) -> str | None:
    if len(shape) > MAX_DIMS:
        return f"{len(shape)} dimensions; torch can use {MAX_DIMS}"
    if not 0 < math.prod(shape) <= MAX_ELEMENTS and (fault := _overflow(shape)):
        return fault
    if dtype and dtype.packing > 1 and (not shape or shape[-1] % dtype.packing):
        return f"{dtype.name} needs a last dimension divisible by {dtype.packing}: torch stores {dtype.torch_name}"
    if dtype and math.prod(shape) * dtype.bits % 8:
        return f"{dtype.name} elements of this shape do not fill whole bytes"
    return None


def _overflow(shape: tuple[int, ...]) -> str | None:
    if shape and max(shape) > MAX_ELEMENTS:
        return "a dimension that does not fit a signed 64-bit integer"
    # Zeros are left out: torch computes strides as if they were ones, so [0, 2**62, 4] overflows as well.
    if math.prod(size for size in shape if size) > MAX_ELEMENTS:
        return "the product of the shape overflows a signed 64-bit integer"
    return None


def _shown(shape: tuple[int, ...]) -> str:
    # Neither a hundred thousand sizes nor a size of three hundred digits belongs in a message.
    text = ", ".join(str(size)[:24] for size in shape[:8])
    return f"[{text}]" if len(shape) <= 8 else f"[{text}, … {len(shape)} dimensions]"
