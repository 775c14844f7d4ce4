# SPDX-License-Identifier: Apache-2.0
"""A tensor that is read when it is indexed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from weight_readers import TensorMeta, TensorSlice

if TYPE_CHECKING:
    from weight_readers_loader.checkpoint import Checkpoint


class LazyTensor:
    """Indexed as torch indexes (integers, slices, steps, ``...``, None, masks); reads only the rows it needs.

    Where the first index is an integer or a slice over the first dimension, only those rows are read; what is
    left of the index is applied to them. Raises IndexError as torch does. A packed tensor is indexed as it is stored,
    in rows and bytes (`shape`); slices of `Checkpoint.iter_stored` count logical elements.
    """

    def __init__(self, checkpoint: Checkpoint, meta: TensorMeta) -> None:
        self._checkpoint = checkpoint
        self._meta = meta

    @property
    def shape(self) -> tuple[int, ...]:
        return self._meta.stored_shape

    @property
    def dtype(self) -> str:
        return self._meta.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        torch.empty(self.shape, device="meta")[index]  # torch itself refuses a bad index, before any byte is read
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        rows = self._rows(first)
        if rows is None:
            return self._read(None)[index]
        start, stop, local = rows
        read = self._read(TensorSlice(dim=0, start=start, stop=stop))
        inner = (local, *rest)
        return read[inner]

    def _rows(self, first: Any) -> tuple[int, int, Any] | None:
        """``(start, stop, index within those rows)``, or None where the whole tensor is needed."""
        packed = self._meta.shape != self._meta.stored_shape and len(self.shape) == 1
        if not self.shape or packed or isinstance(first, bool):
            return None
        if isinstance(first, int):
            row = first % self.shape[0]
            return row, row + 1, 0
        if not isinstance(first, slice):
            return None
        covered = range(self.shape[0])[first]  # torch allows no negative step, so this ascends
        if not covered:
            return 0, 0, slice(None)
        return covered[0], covered[-1] + 1, slice(None, None, covered.step)

    def _read(self, part: TensorSlice | None) -> torch.Tensor:
        name = self._meta.name
        slices = None if part is None else {name: part}
        with closing(self._checkpoint.iter_stored(key_filter=name.__eq__, slices=slices)) as weights:
            return next(tensor for _, tensor in weights)
