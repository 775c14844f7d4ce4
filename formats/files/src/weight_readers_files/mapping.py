# SPDX-License-Identifier: Apache-2.0
"""Private mappings of parts of a file, made with mmap(2) itself.

``mmap.mmap`` of the standard library keeps a duplicate of the descriptor for as long as the mapping lives
(``trackfd=False`` came with Python 3.13): 60 GB of kept weights in segments of 64 MiB would hold 960 of the usual
1024. It also cannot map without swap being reserved for the copies that nobody may ever write.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref

# Python has no name for it before 3.13. The number is that of x86 and ARM; a private mapping ignores unknown flags.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_FAILED = ctypes.c_void_p(-1).value
_WRITABLE_VIEW = 0x200  # PyBUF_WRITE of CPython's object.h

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    # off_t, on every platform that torch is built for.
    ctypes.c_int64,
)
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_view_of = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.restype = ctypes.py_object
_view_of.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def map_private(descriptor: int, offset: int, length: int, *, readonly: bool) -> memoryview:
    """Map ``length > 0`` bytes at ``offset``, a multiple of the page size; raises OSError as mmap(2) fails.

    The mapping ends with the last reference to the memoryview, and a tensor of ``torch.frombuffer`` holds one; the
    descriptor may be closed at once. A write copies the page and never reaches the file; where ``readonly``, it
    ends the process, although the memoryview passes for writable.
    """
    protection = mmap.PROT_READ if readonly else mmap.PROT_READ | mmap.PROT_WRITE
    address = _mmap(None, length, protection, mmap.MAP_PRIVATE | _NORESERVE, descriptor, offset)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapped = memory_at(address, length)
    # Not at exit: tensors that still live then would lose the memory under them.
    weakref.finalize(mapped, _munmap, address, length).atexit = False
    return mapped


def memory_at(address: int, length: int) -> memoryview:
    """A writable view of memory that somebody else keeps alive."""
    view = _view_of(address, length, _WRITABLE_VIEW)
    assert isinstance(view, memoryview)  # noqa: S101 - ctypes cannot type it
    return view
