# SPDX-License-Identifier: Apache-2.0
"""One call: blocks shared out over threads, each range decoded in place or through a scratch that stays in cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from weight_readers_gguf.dequant.compiled._bits import Bytes, Floats
from weight_readers_gguf.dequant.compiled._build import compiled
from weight_readers_gguf.dequant.compiled._numba import config
from weight_readers_gguf.dequant.compiled._pages import ask_for_huge_pages, is_new
from weight_readers_gguf.dequant.compiled._threads import share_out
from weight_readers_gguf.dequant.compiled._vectors import STREAM_ALIGNMENT
from weight_readers_gguf.dequant.compiled.kernels import KERNELS, Kernel
from weight_readers_gguf.types import GGMLType

_DIRECT_ELEMENTS = 1 << 20
"""Of one range that is decoded straight into float32: long beside the cost of a call, short beside a weight."""
_SCRATCH_ELEMENTS = 1 << 15
"""Of one range that is rounded: 128 KiB of float32; torch takes more than these to threads of its own."""
_STREAMED_BYTES = 32 << 20
"""From here on float32 results are written past the caches: as much as the last one of a large CPU holds."""

Work = Callable[[int, int], None]


def start(kind: GGMLType) -> None:
    """Compile the kernel of ``kind`` and decode one block; RuntimeError where numba was told not to compile."""
    if config.DISABLE_JIT:
        raise RuntimeError("NUMBA_DISABLE_JIT is set, and numba compiles nothing; unset it")
    block = np.zeros((1, kind.nbytes), np.uint8)
    _decoder(KERNELS[kind.name], block, streamed=False)(0, 1, np.empty((1, kind.block), np.float32))


def run(kind: GGMLType, packed: torch.Tensor, out: torch.Tensor) -> None:
    """Decode all blocks of ``packed`` into ``out``."""
    ask_for_huge_pages(out)
    blocks, rows = packed.view(-1, kind.nbytes).numpy(), out.view(-1, kind.block)
    direct = out.dtype == torch.float32
    step = max(1, (_DIRECT_ELEMENTS if direct else _SCRATCH_ELEMENTS) // kind.block)
    decode = _decoder(KERNELS[kind.name], blocks, streamed=direct and _streams(out))
    share_out(len(blocks), step, lambda: _direct(decode, rows) if direct else _rounding(decode, rows, step))


def _streams(out: torch.Tensor) -> bool:
    """Whether to write past the caches: what does not fit them need not be read into them to be overwritten.

    New memory is in them when it is written, since the kernel has just cleared it.
    """
    return out.nbytes >= _STREAMED_BYTES and out.data_ptr() % STREAM_ALIGNMENT == 0 and not is_new(out)


_Decode = Callable[[int, int, Floats], None]


def _decoder(kernel: Kernel, blocks: Bytes, *, streamed: bool) -> _Decode:
    function, tables = compiled(kernel, streamed=streamed), [table() for table in kernel.tables]
    return lambda start, stop, out: function(blocks[start:stop], out, *tables)


def _direct(decode: _Decode, out: torch.Tensor) -> Work:
    rows = out.numpy()
    return lambda start, stop: decode(start, stop, rows[start:stop])


def _rounding(decode: _Decode, out: torch.Tensor, step: int) -> Work:
    """Each thread has a scratch, from which torch rounds: there is no second opinion on ties and NaN."""
    scratch = torch.empty(step, out.shape[1], dtype=torch.float32, device="cpu")
    exact = scratch.numpy()

    def work(start: int, stop: int) -> None:
        count = stop - start
        decode(start, stop, exact[:count])
        out[start:stop].copy_(scratch[:count])

    return work
