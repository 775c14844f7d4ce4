# SPDX-License-Identifier: Apache-2.0
"""Codebooks in a device's memory: int8, 33 KiB for all of them, uploaded when a kernel first needs one."""

from __future__ import annotations

from functools import lru_cache

import torch

from weight_readers_gguf.dequant import tables


@lru_cache(maxsize=128)
def on_device(name: str, device: torch.device) -> torch.Tensor:
    """The codebook of type ``name``, flat int8, on ``device``; ``on_device.cache_clear()`` frees all of them."""
    values = tables.values(name) if name in tables.VALUES else tables.grid(name)
    with torch.inference_mode(False):
        return torch.from_numpy(values.astype("int8").reshape(-1)).to(device)
