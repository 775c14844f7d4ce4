# SPDX-License-Identifier: Apache-2.0
"""Some rows of a packed tensor, as an embedding needs them: gathered first, and only these dequantized."""

from __future__ import annotations

import torch
from torch import Tensor

from weight_readers_gguf.dequant.checks import check_packed, resolve_type
from weight_readers_gguf.dequant.dispatch import dequantize


def dequantize_rows(
    packed: Tensor,
    indices: Tensor,
    ggml_type: int | str,
    *,
    dtype: torch.dtype | None = None,
    backend: str | None = None,
) -> Tensor:
    """The rows ``indices`` of ``packed``, as numbers: ``[*indices.shape, elements]``.

    ``packed`` is uint8 ``[rows, row_bytes]``, ``indices`` int32 or int64 of any shape on the same device, from 0 to
    ``rows - 1`` (on a GPU out of range is what it is for ``index_select``). All else as in `dequantize`.

    Raises TypeError, ValueError, or IndexError for a row that is not there.
    """
    check_packed(packed, resolve_type(ggml_type))
    _check(packed, indices)
    rows = packed.index_select(0, indices.reshape(-1))
    return dequantize(rows.view(*indices.shape, packed.shape[1]), ggml_type, dtype=dtype, backend=backend)


def _check(packed: Tensor, indices: Tensor) -> None:
    if packed.ndim != 2:
        raise ValueError(f"packed has shape {list(packed.shape)}; rows are taken of [rows, row_bytes]")
    if not isinstance(indices, Tensor):
        raise TypeError(f"indices must be a tensor of rows, not {type(indices).__name__}")
    if indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices are of dtype {indices.dtype}; expected torch.int32 or torch.int64")
    if indices.device != packed.device:
        raise ValueError(f"indices are on {indices.device}, and packed on {packed.device}")
    if indices.device.type == "cpu" and indices.numel():
        lowest, highest = (int(each) for each in torch.aminmax(indices))
        if lowest < 0 or highest >= packed.shape[0]:
            wrong = lowest if lowest < 0 else highest
            raise IndexError(f"row {wrong} is asked for, and packed has rows 0 to {packed.shape[0] - 1}")
