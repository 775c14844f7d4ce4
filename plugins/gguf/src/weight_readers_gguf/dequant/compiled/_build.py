# SPDX-License-Identifier: Apache-2.0
"""From a Python function to machine code, once per process and type."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from weight_readers_gguf.dequant.compiled._numba import NumbaError, njit
from weight_readers_gguf.dequant.compiled.kernels import Kernel

Compiled = Callable[..., None]

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
    try:
        return _jit(kernel, cache=True)
    except NumbaError:
        raise
    except Exception:
        # No folder that can be written, a full disk, a broken file in the cache: each is an error of another kind, and
        # none a reason to fail.
        return _jit(kernel, cache=False)


def _jit(kernel: Kernel, *, cache: bool) -> Compiled:
    floats = "float32[:, ::1]"
    arguments = ", ".join(["uint8[:, ::1]", floats, *[floats] * len(kernel.tables)])
    dispatcher: Compiled = njit(f"void({arguments})", cache=cache, **_OPTIONS)(kernel.function)
    return dispatcher
