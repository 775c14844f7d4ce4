# SPDX-License-Identifier: Apache-2.0
"""From a Python function to machine code, once per process and type."""

from __future__ import annotations

import hashlib
import os
import threading
from functools import cache
from pathlib import Path
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
    function = _copied(kernel, "_streamed", put=put_streamed) if streamed else _copied(kernel)
    try:
        return _jit(function, len(kernel.tables), cache=True)
    except NumbaError:
        raise
    except Exception:
        # No folder that can be written, a full disk, a broken file in the cache: each is an error of another kind, and
        # none a reason to fail.
        return _jit(function, len(kernel.tables), cache=False)


def _copied(kernel: Kernel, suffix: str = "", **names: object) -> Function:
    """The same code with other global ``names``, and in numba's cache a name that no other sources have.

    Numba looks at the file that a kernel stands in, and not at those of the functions that it inlines.
    """
    function = cast(FunctionType, kernel.function)
    name = f"{function.__name__}{suffix}_{sources_digest()}"
    copy = FunctionType(function.__code__, {**function.__globals__, **names}, name, function.__defaults__)
    copy.__qualname__, copy.__module__ = name, function.__module__
    return copy


@cache
def sources_digest(folder: Path = Path(__file__).parent) -> str:
    """A digest of all that kernels are made of."""
    files = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _jit(function: Function, tables: int, *, cache: bool) -> Function:
    floats = "float32[:, ::1]"
    arguments = ", ".join(["uint8[:, ::1]", floats, *[floats] * tables])
    dispatcher: Function = njit(f"void({arguments})", cache=cache, **_OPTIONS)(function)
    return dispatcher
