# SPDX-License-Identifier: Apache-2.0
"""From a Python function to machine code, once per process and type."""

from __future__ import annotations

import os
import threading
from types import FunctionType
from typing import cast

from weight_readers_gguf.dequant.compiled._numba import NumbaError, njit
from weight_readers_gguf.dequant.compiled._vectors import put_streamed
from weight_readers_gguf.dequant.compiled.kernels import Function, Kernel

_OPTIONS = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
"""No ``fastmath``: it would contract a product and a sum into one rounding, and ggml has two."""

_built: dict[tuple[Function, bool], Function] = {}
_locks: dict[int, threading.Lock] = {}


def compiled(kernel: Kernel, *, streamed: bool = False) -> Function:
    """The kernel in machine code; compiles it (or loads it from numba's cache) when it is first asked for.

    With ``streamed`` it writes past the caches, to memory aligned to `STREAM_ALIGNMENT`.
    """
    key = (kernel.function, streamed)
    found = _built.get(key)
    if found is None:
        # One lock per process: that of a parent may have been held when it forked.
        with _locks.setdefault(os.getpid(), threading.Lock()):
            found = _built.get(key) or _built.setdefault(key, _compile(kernel, streamed))
    return found


def _compile(kernel: Kernel, streamed: bool) -> Function:
    function = _streaming(kernel) if streamed else kernel.function
    try:
        return _jit(function, len(kernel.tables), cache=True)
    except NumbaError:
        raise
    except Exception:
        # No folder that can be written, a full disk, a broken file in the cache: each is an error of another kind, and
        # none a reason to fail.
        return _jit(function, len(kernel.tables), cache=False)


def _streaming(kernel: Kernel) -> Function:
    """The same code with another ``put``, and a name of its own in the cache."""
    function = cast(FunctionType, kernel.function)
    names = {**function.__globals__, "put": put_streamed}
    copy = FunctionType(function.__code__, names, f"{function.__name__}_streamed")
    copy.__qualname__, copy.__module__ = copy.__name__, function.__module__
    return copy


def _jit(function: Function, tables: int, *, cache: bool) -> Function:
    floats = "float32[:, ::1]"
    arguments = ", ".join(["uint8[:, ::1]", floats, *[floats] * tables])
    dispatcher: Function = njit(f"void({arguments})", cache=cache, **_OPTIONS)(function)
    return dispatcher
