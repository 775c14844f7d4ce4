# SPDX-License-Identifier: Apache-2.0
"""Dequantization on the CPU in code that numba compiles for this machine: one kernel per type, float32 throughout.

A kernel is compiled when its type is first met (about half a second) and kept in numba's cache on disk where one can
be written. Blocks are shared out over at most ``torch.get_num_threads()`` threads, without the GIL.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch

from weight_readers_gguf.dequant.installed import is_installed
from weight_readers_gguf.types import DEQUANTIZABLE, GGMLType

__all__ = ["SUPPORTED", "absent", "dequantize_into", "start"]

SUPPORTED: frozenset[str] = DEQUANTIZABLE
"""Names of the types that have a kernel."""


def absent() -> str | None:
    """Why this path cannot run here; imports nothing."""
    if not is_installed("numba"):
        return 'numba is not installed: pip install "weight-readers-gguf[compiled]"'
    return None


def start(kind: GGMLType) -> None:
    """Compile the kernel of ``kind`` and run it once; raises whatever numba does where it is broken."""
    _backend().start(kind)


def dequantize_into(packed: torch.Tensor, kind: GGMLType, out: torch.Tensor) -> None:
    """Write the elements of ``packed`` into ``out``, bit for bit as ggml's ``to_float``, rounded once if at all.

    ``packed`` is contiguous uint8 of whole blocks, ``out`` contiguous float32, bfloat16 or float16 of as many elements;
    both are on the CPU. bfloat16 and float16 are rounded to nearest even, as ``Tensor.to`` does. Raises ImportError
    where numba cannot be imported.
    """
    if packed.numel():
        _backend().run(kind, packed.detach(), out.detach())


@cache
def _backend() -> ModuleType:
    """What needs numba, imported when it is first used."""
    try:
        from weight_readers_gguf.dequant.compiled import _run
    except Exception as error:
        raise ImportError(
            "numba cannot be imported, and compiled dequantization needs it: "
            f"{type(error).__name__}: {error}. "
            'Install one that fits: pip install --upgrade numba; or choose backend="torch"'
        ) from error
    return _run
