# SPDX-License-Identifier: Apache-2.0
"""Numbers out of bytes, in the operations that numba compiles: inlined into every kernel.

Integers of mixed widths become int64 there, which most vector units cannot turn into float32; `number` narrows them
first. Halves are converted by their bits, so that neither a table nor a rounding mode decides: denormals, infinities
and NaN come out as ggml's ``GGML_FP16_TO_FP32`` gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from weight_readers_gguf.dequant.compiled._numba import extending

Bytes = npt.NDArray[np.uint8]
"""Blocks: ``[blocks, bytes of one]``, contiguous."""
Floats = npt.NDArray[np.float32]
"""Results ``[blocks, elements of one]``, or a table; contiguous."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_DENORMAL_UNIT = np.float32(2.0**-24)


def helper(function: _Function) -> _Function:
    """Decorator: the function may be called in kernels."""
    extending.register_jitable(function)
    return function


@helper
def number(integer: Any) -> Any:
    """A small integer as float32."""
    return np.float32(np.int32(integer))


@helper
def signed(byte: Any) -> Any:
    """A byte as int8, as float32."""
    return np.float32(np.int8(byte))


@helper
def u16(blocks: Any, i: Any, at: Any) -> Any:
    """Two bytes, the lower first."""
    return np.int64(blocks[i, at]) | (np.int64(blocks[i, at + 1]) << 8)


@helper
def u32(blocks: Any, i: Any, at: Any) -> Any:
    """Four bytes, the lowest first."""
    return u16(blocks, i, at) | (u16(blocks, i, at + 2) << 16)


@helper
def half_of(bits: Any) -> Any:
    """The 16 bits of a half as float32."""
    sign, exponent, mantissa = (bits & 0x8000) << 16, (bits >> 10) & 0x1F, bits & 0x3FF
    if exponent == 0:
        absolute = np.float32(number(mantissa) * _DENORMAL_UNIT).view(np.uint32)
        return np.uint32(sign | np.int64(absolute)).view(np.float32)
    if exponent == 31:
        return np.uint32(sign | 0x7F800000 | (mantissa << 13)).view(np.float32)
    return np.uint32(sign | ((exponent + 112) << 23) | (mantissa << 13)).view(np.float32)


@helper
def half(blocks: Any, i: Any, at: Any) -> Any:
    """The half at two bytes, as float32."""
    return half_of(u16(blocks, i, at))
