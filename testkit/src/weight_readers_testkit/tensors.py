# SPDX-License-Identifier: Apache-2.0
"""Tensors as bytes: made without any reader, and compared bit for bit."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)
"""Every torch dtype that a checkpoint may hold, by name; an installed torch may lack the last ones."""

Contents = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Name -> dtype name, shape and bytes, in the order in which the tensors came."""


class Stored(NamedTuple):
    """One tensor to write: ``dtype`` and ``shape`` as torch has them, and its elements in order, little endian.

    ``packed`` names the quantized type (``Q8_0``) where ``data`` are its blocks; ``dtype`` is ``uint8`` then, and
    ``shape`` is ``[rows, bytes of a row]``.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    packed: str | None = None


def noise(count: int, seed: object = 0) -> bytes:
    """Bytes that look like nothing: NaNs, denormals and padding bits included."""
    return random.Random(str(seed)).randbytes(count)


def stored(dtype: str, *shape: int, seed: object = 0) -> Stored:
    """A tensor of noise; ``bool`` holds 0 and 1 only, since torch computes with no others."""
    data = noise(math.prod(shape) * getattr(torch, dtype).itemsize, seed)
    return Stored(dtype, shape, bytes(byte & 1 for byte in data) if dtype == "bool" else data)


def bits(values: torch.Tensor) -> bytes:
    """The elements in order, as bytes; of any strides and any dtype."""
    flat = values.view(torch.uint8) if values.dtype.itemsize == 1 else values.contiguous().reshape(-1)
    whole = flat.contiguous().view(torch.uint8)
    return ctypes.string_at(whole.data_ptr(), whole.numel())  # NumPy, which torch does not bring, need not be there


def contents(pairs: Iterable[tuple[str, torch.Tensor]]) -> Contents:
    """What came, taken down tensor by tensor: later ones may overwrite it."""
    return {name: (name_of(values.dtype), tuple(values.shape), bits(values)) for name, values in pairs}


def expected(tensors: dict[str, Stored]) -> Contents:
    """What a reader of these tensors has to yield."""
    return {name: (each.dtype, tuple(each.shape), each.data) for name, each in tensors.items()}


def same(right: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Assert that both say the same of the same tensors, in any order.

    pytest would compare megabytes line by line, for minutes where ``CI`` is set: of what differs a few are named.
    """
    wrong = [name for name in {**right, **got} if name not in right or name not in got or right[name] != got[name]]
    assert not wrong, f"{len(wrong)} tensors differ: {'; '.join(_differing(name, right, got) for name in wrong[:3])}"


def _differing(name: str, right: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    return f"{name!r}, expected {_short(right, name)}, found {_short(got, name)}"


def _short(tensors: Mapping[str, Any], name: str) -> str:
    return repr(tensors[name])[:200] if name in tensors else "none"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def installed(names: Iterable[str]) -> list[str]:
    """Those dtypes that the installed torch has."""
    return [name for name in names if isinstance(getattr(torch, name, None), torch.dtype)]


def blank(each: Stored) -> torch.Tensor:
    """A tensor to read ``each`` into, of any dtype: torch cannot fill those of four bits."""
    dtype = getattr(torch, each.dtype)
    return torch.zeros((*each.shape, dtype.itemsize), dtype=torch.uint8).view(dtype).view(each.shape)
