# SPDX-License-Identifier: Apache-2.0
"""A program of its own, since Triton's interpreter is chosen before kernels are defined: python -m ... IN OUT.

IN holds arrays ``TYPE/dtype`` of packed blocks; OUT gets the elements, with `GUARD` elements behind them that no
kernel may touch (as the bytes of the dtype), and ``imported``: whether triton was imported before it was needed.
Behind the blocks lies a page that cannot be read: a kernel that reads past the last one ends the program.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any

GUARD = 64
_PROT_NONE = 0


def fenced(blocks: Any) -> Any:
    """A copy of the array that ends where a page begins which nobody may read."""
    import numpy as np

    size = -(-blocks.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    fence = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + size
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), mmap.PAGESIZE, _PROT_NONE) == 0
    found = np.frombuffer(memory, np.uint8, blocks.nbytes, size - blocks.nbytes).reshape(blocks.shape)
    found[:] = blocks
    return found


def main(source: str, target: str) -> None:
    import numpy as np
    import torch

    from weight_readers_gguf.dequant import triton_kernels
    from weight_readers_gguf.types import BY_NAME

    assert os.environ["TRITON_INTERPRET"] == "1"
    results = {"imported": np.array("triton" in sys.modules)}
    from weight_readers_gguf.dequant.triton_kernels import launch

    usual = launch.ELEMENTS
    with np.load(source) as tasks:
        for key in tasks.files:
            name, dtype = key.split("/")[:2]
            # An interpreter's time goes by operations, not by elements.
            launch.ELEMENTS = usual if key.endswith("as on a device") else 1 << 18
            kind, packed = BY_NAME[name], torch.from_numpy(fenced(tasks[key]))
            size = packed.numel() // kind.nbytes * kind.block
            memory = torch.full((size + GUARD,), -7.0, dtype=getattr(torch, dtype))
            triton_kernels.dequantize_into(packed, kind, memory[:size])
            results[key] = memory.view(torch.uint8).numpy()
    np.savez(target, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
