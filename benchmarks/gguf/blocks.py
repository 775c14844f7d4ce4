# SPDX-License-Identifier: Apache-2.0
"""Packed weights to measure with: random codes under scales of an ordinary size.

Quantizing real numbers would take minutes for some types, and every bit pattern of the codes is legal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weight_readers_gguf.types import BY_NAME

Bytes = npt.NDArray[np.uint8]

SEED = 20260101
_HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ1_M": (),
    "MXFP4": (),
    "NVFP4": (),
}
"""Where float16 scales lie in a block; at its begin in all other types."""
_EXPONENTS = {"MXFP4": ((0,), 118, 8), "NVFP4": ((0, 1, 2, 3), 0x30, 16)}
"""Scales of one byte: where, from which code on, and how many codes."""


def random_weight(name: str, rows: int, columns: int) -> Bytes:
    """uint8 ``[rows, row_bytes]`` of one type; the same bytes at every call."""
    kind = BY_NAME[name]
    random = np.random.default_rng([SEED, kind.id])
    blocks = random.integers(0, 256, (rows * columns // kind.block, kind.nbytes), dtype=np.uint8)
    for at in _HALVES.get(name, (0,)):
        scales = random.uniform(0.002, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name in _EXPONENTS:
        places, first, count = _EXPONENTS[name]
        blocks[:, list(places)] = random.integers(first, first + count, (len(blocks), len(places)), dtype=np.uint8)
    if name == "IQ1_M":
        # Its scale is spread over the upper half of four bytes; 0x2 on top makes it 2**-7 to 2**-6.
        blocks[:, 55] = blocks[:, 55] & 0x0F | 0x20
    return blocks.reshape(rows, -1)
