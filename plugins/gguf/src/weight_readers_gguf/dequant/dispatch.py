# SPDX-License-Identifier: Apache-2.0
"""`dequantize`: arguments checked, then one operator of torch, or memory written in pieces by a backend."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from weight_readers_gguf.dequant.backends import pick_backend
from weight_readers_gguf.dequant.checks import check_out, check_packed, resolve_dtype, resolve_type
from weight_readers_gguf.dequant.observed import is_observed
from weight_readers_gguf.types import GGMLType

__all__ = ["compute", "dequantize"]

# Bytes of packed rows that are copied at a time where they do not lie in one piece.
_PIECE = 16 << 20


def dequantize(
    packed: Tensor,
    ggml_type: int | str,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """The numbers that packed blocks stand for, bit for bit those of ggml's ``to_float``.

    ``packed`` is uint8 ``[..., row_bytes]`` of whole blocks, contiguous or not, on any device; the result has the
    shape ``[..., row_bytes // nbytes * block]`` (of `weight_readers_gguf.types.TYPES`) and the dtype float32 (the
    default), bfloat16 or float16. It is computed in float32 and rounded once, to nearest even. ``out`` is where to
    write it: contiguous, of that shape, device and dtype (by default its own). ``ggml_type`` is an id or a name,
    ``"Q4_K"``. ``backend`` is ``"torch"``, ``"compiled"`` or ``"triton"``, by default the fastest that is there; few
    numbers on a CPU come from torch, where compiling would take longer than making them.

    On the device ``meta`` nothing is computed. NaN comes out where it does in ggml; its payload is not defined.

    Raises TypeError or ValueError for arguments that do not fit together, and RuntimeError for a backend that is
    named and cannot run here.
    """
    kind = resolve_type(ggml_type)
    shape = check_packed(packed, kind)
    dtype = resolve_dtype(dtype, out)
    if out is not None:
        check_out(out, shape, dtype, packed)
    if is_observed(packed):
        return _by_operator(packed, kind, dtype, out, backend)
    return compute(packed, kind, dtype, out, backend)


def _by_operator(packed: Tensor, kind: GGMLType, dtype: torch.dtype, out: Tensor | None, backend: str | None) -> Tensor:
    """As one operator of torch, which finds its backend when it runs."""
    from weight_readers_gguf.dequant.operator import dequantize as operator

    if backend is not None:
        pick_backend(kind, packed.device, backend)
    found: Tensor = operator(packed, kind.id, dtype)
    if out is None:
        return found
    with torch.no_grad():
        return out.copy_(found)


def compute(
    packed: Tensor, kind: GGMLType, dtype: torch.dtype, out: Tensor | None = None, backend: str | None = None
) -> Tensor:
    """`dequantize` with arguments that were checked, and with nobody looking on."""
    shape = (*packed.shape[:-1], packed.shape[-1] // kind.nbytes * kind.block)
    deferred = backend is None and packed.device.type == "cpu" and _compiling.defer(math.prod(shape))
    module = pick_backend(kind, packed.device, "torch" if deferred else backend)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=packed.device)
    else:
        _announce(out)
    if packed.device.type != "meta":
        with torch.no_grad():
            for piece, where in _pieces(packed, out, kind):
                module.dequantize_into(piece, kind, where)
    return out


def _announce(out: Tensor) -> None:
    """Have autograd know that ``out`` is written to, as each operation of torch does that writes in place.

    Otherwise a gradient would be computed from what it saved before, and is now something else.
    """
    if not out.is_inference():
        increment_version(out)
    elif not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "out was made in inference mode and cannot be written outside of it: pass out.clone(), or make it outside"
        )


class _Compiling:
    """Whether compiled code is worth its start: a second or more to import the compiler and to compile.

    Torch operations make the first numbers of a process, as many as they can make in that time.
    """

    def __init__(self, elements: int = 32 << 20) -> None:
        self._left = elements

    def defer(self, elements: int) -> bool:
        if self._left <= 0 or "numba" in sys.modules:
            return False
        self._left -= elements
        return self._left > 0


_compiling = _Compiling()


def _pieces(packed: Tensor, out: Tensor, kind: GGMLType) -> Iterator[tuple[Tensor, Tensor]]:
    """``packed`` and ``out`` in contiguous pieces, no more than ``_PIECE`` bytes of them copied at a time."""
    if packed.numel() == 0:
        return
    if packed.is_contiguous() or packed.numel() <= max(_PIECE, kind.nbytes):
        yield packed.contiguous(), out
    elif packed.ndim == 1:
        blocks = packed.shape[0] // kind.nbytes
        yield from _pieces(packed.view(blocks, kind.nbytes), out.view(blocks, kind.block), kind)
    elif packed.shape[0] == 1:
        yield from _pieces(packed[0], out[0], kind)
    else:
        rows = max(1, _PIECE * packed.shape[0] // packed.numel())
        for some, where in zip(torch.split(packed, rows), torch.split(out, rows), strict=True):
            yield from _pieces(some, where, kind)
