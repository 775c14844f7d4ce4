# SPDX-License-Identifier: Apache-2.0
"""A program of its own, since Triton's interpreter is chosen before kernels are defined: python -m ... IN OUT.

IN holds arrays ``TYPE/dtype`` of packed blocks; OUT gets the elements, with `GUARD` elements behind them that no
kernel may touch (as the bytes of the dtype), and ``imported``: whether triton was imported before it was needed.
"""

from __future__ import annotations

import os
import sys

GUARD = 64


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
            kind, packed = BY_NAME[name], torch.from_numpy(tasks[key])
            size = packed.numel() // kind.nbytes * kind.block
            memory = torch.full((size + GUARD,), -7.0, dtype=getattr(torch, dtype))
            triton_kernels.dequantize_into(packed, kind, memory[:size])
            results[key] = memory.view(torch.uint8).numpy()
    np.savez(target, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
