# SPDX-License-Identifier: Apache-2.0
"""The C library, opened once: making its class takes longer than any call of it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def libc() -> Any:
    """With the types of those functions that take addresses, which are longer than ctypes' default."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "mincore"):
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    if hasattr(library, "madvise"):
        library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library
