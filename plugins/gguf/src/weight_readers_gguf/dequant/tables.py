# SPDX-License-Identifier: Apache-2.0
"""The constant tables of packed types: codebooks, signs, values of codes, and scales of one byte.

Every array is cached, shared and read-only. Source: the tables of ggml-common.h and the conversions of ggml-impl.h;
the large grids are taken from the gguf package, which every install of this plugin has.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import numpy as np

__all__ = ["VALUES", "bits_to_bytes", "grid", "ksigns", "scales", "values"]

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Codes = np.ndarray[tuple[int, ...], np.dtype[np.int8]]
Array = TypeVar("Array", bound=np.ndarray[Any, Any])

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of E2M1, to be whole; the scales are halved in return.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

VALUES = {"IQ4_NL": _IQ4, "IQ4_XS": _IQ4, "MXFP4": _E2M1, "NVFP4": _E2M1}
"""What the sixteen codes of four bits stand for, by type."""


@cache
def grid(type_name: str) -> Floats:
    """The codebook of an IQ type: float32 ``[entries, 8]``, of ``IQ3_*`` ``[entries, 4]``.

    ``IQ1_M`` shares that of ``IQ1_S`` (-1, 0, 1, before the delta); the others are magnitudes.
    """
    from gguf import quants

    # The gguf package decodes a grid from its hexadecimal form on first use, and keeps it.
    owner: Any = getattr(quants, type_name)
    owner.init_grid()
    return _frozen(np.array(owner.grid, np.float32).reshape(owner.grid_shape))


@cache
def ksigns() -> Bytes:
    """The signs behind a code of seven bits: uint8 ``[128]``, bit ``i`` set where element ``i`` is negative.

    An even number of the eight are negative, so that the highest bit is the parity of the others.
    """
    codes = np.arange(128, dtype=np.uint8)
    parity = np.unpackbits(codes[:, None], axis=1).sum(axis=1, dtype=np.uint8) & 1
    return _frozen(codes | parity << np.uint8(7))


@cache
def values(type_name: str) -> Codes:
    """What the sixteen codes of ``IQ4_NL``, ``IQ4_XS``, ``MXFP4`` and ``NVFP4`` stand for: int8 ``[16]``."""
    return _frozen(np.array(VALUES[type_name], np.int8))


@cache
def scales(type_name: str) -> Floats:
    """What the byte of a scale stands for: float32 ``[256]``, halved since `values` are doubled.

    ``MXFP4``: E8M0, ``2 ** (byte - 128)`` (``ggml_e8m0_to_fp32_half``: 255 is a number as well).
    ``NVFP4``: unsigned E4M3 of bias 7 (``ggml_ue4m3_to_fp32``: 0x7F is zero, the highest bit is ignored).
    """
    byte = np.arange(256)
    if type_name == "MXFP4":
        return _frozen(np.ldexp(1.0, byte - 128).astype(np.float32))
    exponent, mantissa = byte >> 3 & 0xF, byte & 7
    normal = np.ldexp(8.0 + mantissa, exponent - 10)
    found = np.where(exponent == 0, np.ldexp(mantissa, -9), normal) * 0.5
    found[0x7F] = 0
    return _frozen(found.astype(np.float32))


@cache
def bits_to_bytes() -> Bytes:
    """Each byte's bits as bytes of 0 or 1, the lowest bit first: uint8 ``[256, 8]``."""
    return _frozen(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"))


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
