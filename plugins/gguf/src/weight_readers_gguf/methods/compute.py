# SPDX-License-Identifier: Apache-2.0
"""Arithmetic with packed weights: dequantized to the dtype of the activations, then torch's own GEMM.

At the batch sizes of diffusion models that beats kernels which multiply packed blocks. fp32 arithmetic in
dequantization and one rounding, whatever the dtype; see `weight_readers_gguf.dequant`.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from weight_readers_gguf.dequant import dequantize
from weight_readers_gguf.dequant.observed import is_observed
from weight_readers_gguf.dequant.operator import dequantize as dequantize_operator
from weight_readers_gguf.methods.segments import Layout, Run
from weight_readers_gguf.methods.workspace import Workspace

ACTIVATIONS = (torch.float32, torch.float16, torch.bfloat16)


def linear(
    x: torch.Tensor, qweight: torch.Tensor, layout: Layout, bias: torch.Tensor | None, workspace: Workspace
) -> torch.Tensor:
    """``x [..., columns] -> [..., rows]`` in the dtype of ``x`` (that of autocast where it is on), any strides.

    A weight larger than the workspace is dequantized and multiplied in windows of rows. The arithmetic of a row is
    the same in each; torch may choose another kernel for a narrower matrix, which can move the last bit. Raises
    ValueError for another width or bias, TypeError for another dtype of ``x``, RuntimeError where the weight has no
    memory and ``x`` has.
    """
    _check_memory(x, qweight, layout)
    _check(x, bias, layout)
    x = x.to(_compute_dtype(x))
    bias = None if bias is None else bias.to(x.dtype)
    step = workspace.rows(layout.columns, x.dtype)
    if is_observed(x, qweight):
        return _traced(x, qweight, layout, bias, step)
    if layout.rows <= step:
        return _window(x, qweight, layout, bias, workspace, 0, layout.rows)
    out = x.new_empty(*x.shape[:-1], layout.rows)
    for begin in range(0, layout.rows, step):
        end = min(begin + step, layout.rows)
        out[..., begin:end] = _window(x, qweight, layout, bias, workspace, begin, end)
    return out


def embedding(ids: torch.Tensor, qweight: torch.Tensor, layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    """``ids [...] -> [..., columns]`` in ``dtype``: packed rows are gathered, and only those dequantized.

    Raises IndexError for an index without a row, as torch does, and RuntimeError as `linear` does.
    """
    _check_memory(ids, qweight, layout)
    rows = functional.embedding(ids, qweight)
    if rows.numel() == 0:
        return rows.new_empty(*ids.shape, layout.columns, dtype=dtype)
    return _dense(rows.reshape(-1, rows.shape[-1]), layout.runs[0], dtype).view(*ids.shape, layout.columns)


def _check(x: torch.Tensor, bias: torch.Tensor | None, layout: Layout) -> None:
    if x.dtype not in ACTIVATIONS:
        raise TypeError(f"layer {layout.prefix!r} takes float32, float16 or bfloat16, not {x.dtype}")
    if x.dim() == 0 or x.shape[-1] != layout.columns:
        raise ValueError(f"layer {layout.prefix!r} takes [..., {layout.columns}], not {list(x.shape)}")
    # Windows of rows take their part of it: one that is too long would fit them all.
    if bias is not None and tuple(bias.shape) != (layout.rows,):
        raise ValueError(f"layer {layout.prefix!r} takes a bias [{layout.rows}], not {list(bias.shape)}")


def _check_memory(given: torch.Tensor, qweight: torch.Tensor, layout: Layout) -> None:
    """On a CPU torch multiplies with a matrix without memory all the same, and gives what happens to lie there."""
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"layer {layout.prefix!r} takes a tensor as input, not {type(given).__name__}")
    if qweight.is_meta and not given.is_meta:
        raise RuntimeError(
            f"the packed weight of layer {layout.prefix!r} has no memory yet: put the weights of the checkpoint into"
            " the prepared model with fill, or load it with load_packed; in an engine, give the parameter memory first"
        )


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def _window(
    x: torch.Tensor,
    qweight: torch.Tensor,
    layout: Layout,
    bias: torch.Tensor | None,
    workspace: Workspace,
    begin: int,
    end: int,
) -> torch.Tensor:
    bias = None if bias is None else bias[begin:end]
    if x.requires_grad and torch.is_grad_enabled():
        # The gradient of x needs the weight after this call: memory that is lent again would be overwritten.
        dense = torch.empty(end - begin, layout.columns, dtype=x.dtype, device=qweight.device)
        return functional.linear(x, _filled(dense, qweight, layout, begin, end), bias)
    if x.shape[:-1].numel() == 0:
        return x.new_empty(*x.shape[:-1], end - begin)
    with workspace.lend(end - begin, layout.columns, x.dtype, qweight.device) as dense:
        return functional.linear(x, _filled(dense, qweight, layout, begin, end), bias)


def _filled(dense: torch.Tensor, qweight: torch.Tensor, layout: Layout, begin: int, end: int) -> torch.Tensor:
    for run in layout.pieces(begin, end):
        target, packed = dense[run.row - begin : run.stop - begin], rows_of(qweight, run)
        if run.type.dtype is None:
            dequantize(packed, run.type.id, dtype=dense.dtype, out=target)
        else:
            target.copy_(_numbers(packed, run))
    return dense


def _traced(
    x: torch.Tensor, qweight: torch.Tensor, layout: Layout, bias: torch.Tensor | None, step: int
) -> torch.Tensor:
    """What a compiler or a tracer sees: one opaque operator per run of rows, no memory of ours."""
    outs = []
    for begin in range(0, layout.rows, step):
        end = min(begin + step, layout.rows)
        dense = _joined([_dense(rows_of(qweight, run), run, x.dtype) for run in layout.pieces(begin, end)])
        outs.append(functional.linear(x, dense, None if bias is None else bias[begin:end]))
    return _joined(outs, dim=-1)


def rows_of(qweight: torch.Tensor, run: Run) -> torch.Tensor:
    """The bytes of a run, ``uint8 [rows, row_bytes]``, as a view of the buffer."""
    if qweight.dim() > 1:
        return qweight[run.row : run.stop]
    return qweight[run.offset : run.offset + run.nbytes].view(run.rows, run.row_bytes)


def _dense(packed: torch.Tensor, run: Run, dtype: torch.dtype) -> torch.Tensor:
    if run.type.dtype is not None:
        return _numbers(packed, run).to(dtype)
    dense: torch.Tensor = dequantize_operator(packed, run.type.id, dtype)
    return dense


def _numbers(packed: torch.Tensor, run: Run) -> torch.Tensor:
    """Rows of plain numbers, which may lie at an odd byte of a flat buffer."""
    dtype: torch.dtype = getattr(torch, run.type.dtype or "")
    return (packed.clone() if packed.storage_offset() % dtype.itemsize else packed).view(dtype)


def _joined(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)
