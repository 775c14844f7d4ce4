# SPDX-License-Identifier: Apache-2.0
"""The pages of a result: huge ones where they can be had, and whether it has any yet.

The first write to new memory costs more than dequantization where pages are small. Linux only; elsewhere nothing is
done, and nothing is taken for new.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

import torch

_LEAST_BYTES = 4 << 20
"""Where numpy begins to ask for them, too."""


def ask_for_huge_pages(out: torch.Tensor) -> None:
    """Advise the kernel to back ``out`` by huge pages where it has none yet; without effect where it will not.

    It is what numpy does for arrays of its own; torch does not. Source: madvise(2), ``MADV_HUGEPAGE``.
    """
    function = _c_function("madvise", ctypes.c_int)
    if function is None or out.nbytes < _LEAST_BYTES:
        return
    begin = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (out.data_ptr() + out.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    function(begin, end - begin, mmap.MADV_HUGEPAGE)


def is_new(out: torch.Tensor) -> bool:
    """Whether the middle of ``out`` has no page yet: the kernel will put a cleared one into the caches at first touch.

    Source: mincore(2).
    """
    function = _c_function("mincore", ctypes.c_char_p)
    if function is None or not out.nbytes:
        return False
    page = (out.data_ptr() + out.nbytes // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    answer = ctypes.create_string_buffer(1)
    return function(page, 1, answer) == 0 and not answer.raw[0] & 1


@cache
def _c_function(name: str, last: type) -> Any:
    """A function of the C library with arguments ``(address, length, last)``, or None where there is no such thing."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = getattr(ctypes.CDLL(None), name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, last)
    return function
