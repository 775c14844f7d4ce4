# SPDX-License-Identifier: Apache-2.0
"""What an arm delivered: every page of it touched within the clock, every byte of it compared outside of it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from benchmarks.entries import Entry

_FEW_PAGES = 8 * mmap.PAGESIZE


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as a flat uint8 view."""
    return tensor.reshape(-1).view(torch.uint8)


def touch(tensor: torch.Tensor) -> None:
    """Read one byte of every page, and the last one."""
    if tensor.nbytes > _FEW_PAGES:
        raw = as_bytes(tensor)
        raw[:: mmap.PAGESIZE].sum() + raw[-1]
    elif tensor.nbytes:
        # Not by torch: three of its calls take longer than all that is done for a small tensor.
        begin = tensor.data_ptr()
        for address in (*range(begin, begin + tensor.nbytes, mmap.PAGESIZE), begin + tensor.nbytes - 1):
            _ = ctypes.c_ubyte.from_address(address).value


def existing(entries: Sequence[Entry]) -> dict[str, torch.Tensor]:
    """Parameters as a model has them before a load: allocated one by one, every page written once."""
    return {entry.name: torch.empty(entry.shape, dtype=entry.dtype).fill_(0) for entry in entries}


def check(tensors: Mapping[str, torch.Tensor], wanted: Sequence[Entry]) -> None:
    """Raise where anything else than the wanted tensors, with the bytes of the files, was delivered."""
    if set(tensors) != {entry.name for entry in wanted}:
        raise AssertionError(f"{len(tensors)} tensors were delivered, {len(wanted)} wanted")
    for entry in wanted:
        tensor = tensors[entry.name]
        if (tensor.dtype, tuple(tensor.shape)) != (entry.dtype, entry.shape):
            raise AssertionError(f"{entry.name}: {tensor.dtype} {list(tensor.shape)}, not {entry.dtype} {entry.shape}")
        if not np.array_equal(as_bytes(tensor).numpy(), entry.expected()):
            raise AssertionError(f"{entry.name}: other bytes than in {entry.file}")
