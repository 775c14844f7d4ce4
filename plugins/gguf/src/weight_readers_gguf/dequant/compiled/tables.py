# SPDX-License-Identifier: Apache-2.0
"""Tables in the form that kernels take them: float32 ``[entries, values]``, contiguous, made once.

They are arguments of the kernels and not constants in them, so that compiled code on disk cannot hold old ones.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from weight_readers_gguf.dequant import tables
from weight_readers_gguf.dequant.compiled._bits import Floats


@cache
def codebook(name: str) -> Floats:
    """The entries of a type's codebook, 4 or 8 values each."""
    return np.array(tables.grid(name), np.float32, order="C")


@cache
def values(name: str) -> Floats:
    """What a type's 16 codes stand for."""
    return np.array(tables.values(name)[:, None], np.float32)


@cache
def scales(name: str) -> Floats:
    """What the 256 bytes of a type's scale stand for."""
    return np.array(tables.scales(name)[:, None], np.float32)


@cache
def signs_of_bytes() -> Floats:
    """For each byte 8 factors, lowest bit first: -1 where the bit is set, else 1."""
    return np.array(np.where(tables.bits_to_bytes(), -1, 1), np.float32)


@cache
def signs_of_codes() -> Floats:
    """The factors of the 128 codes of 7 bits, whose eighth sign makes their number even."""
    return np.array(signs_of_bytes()[tables.ksigns()], np.float32, order="C")
