# SPDX-License-Identifier: Apache-2.0
"""From a Python function to machine code, once per process and type."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from weight_readers_gguf.dequant.compiled import _bits, k
from weight_readers_gguf.dequant.compiled.kernels import Kernel

Compiled = Callable[..., None]

_HELPERS: tuple[Callable[..., Any], ...] = (
    _bits.number,
    _bits.signed,
    _bits.u16,
    _bits.u32,
    _bits.half_of,
    _bits.half,
    k.q3_k_scale,
    k.k_scale,
    k.k_minimum,
)
_OPTIONS = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
"""No ``fastmath``: it would contract a product and a sum into one rounding, and ggml has two."""

_built: dict[Callable[..., None], Compiled] = {}
_locks: dict[int, threading.Lock] = {}


def compiled(kernel: Kernel) -> Compiled:
    """The kernel in machine code; compiles it (or loads it from numba's cache) when it is first asked for."""
    found = _built.get(kernel.function)
    if found is None:
        # One lock per process: that of a parent may have been held when it forked.
        with _locks.setdefault(os.getpid(), threading.Lock()):
            found = _built.get(kernel.function) or _built.setdefault(kernel.function, _compile(kernel))
    return found


def _compile(kernel: Kernel) -> Compiled:
    numba = _numba()
    for helper in _HELPERS:
        numba.extending.register_jitable(helper)
    table = "float32[:, ::1]"
    signature = f"void({', '.join(['uint8[:, ::1]', table, *[table] * len(kernel.tables)])})"
    try:
        return _jit(numba, kernel.function, signature, cache=True)
    except numba.core.errors.NumbaError:
        raise
    except Exception:
        # No folder that can be written, a full disk, a broken file in the cache: each is an error of another kind, and
        # none a reason to fail.
        return _jit(numba, kernel.function, signature, cache=False)


def _jit(numba: ModuleType, function: Callable[..., None], signature: str, *, cache: bool) -> Compiled:
    dispatcher: Compiled = numba.njit(signature, cache=cache, **_OPTIONS)(function)
    return dispatcher


def _numba() -> ModuleType:
    try:
        import numba
        import numba.core.errors
        import numba.extending
    except ImportError as error:
        raise ImportError(
            f"numba cannot be imported, and compiled dequantization needs it: {error}. "
            'Install one that fits: pip install --upgrade numba; or choose backend="torch"'
        ) from error
    return numba
