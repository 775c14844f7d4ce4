# SPDX-License-Identifier: Apache-2.0
"""Which backend dequantizes, and in what pieces."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from weight_readers_gguf.dequant.checks import check_out, check_packed, resolve_dtype, resolve_type
from weight_readers_gguf.types import GGMLType

__all__ = ["BACKENDS", "Backend", "dequantize", "pick_backend"]


class Backend(Protocol):
    """What the module of a backend has."""

    SUPPORTED: frozenset[str]

    def absent(self) -> str | None:
        """Why it cannot run here, or None."""

    def dequantize_into(self, packed: Tensor, kind: GGMLType, out: Tensor, /) -> None:
        """Write contiguous whole blocks to ``out``, contiguous and of the right size and device."""


class _Known(NamedTuple):
    module: str
    device: str | None
    """The only kind of device it runs on."""


# The fastest first; the last one runs everywhere.
BACKENDS: Mapping[str, _Known] = {
    "triton": _Known("weight_readers_gguf.dequant.triton_kernels", "cuda"),
    "compiled": _Known("weight_readers_gguf.dequant.compiled", "cpu"),
    "torch": _Known("weight_readers_gguf.dequant.torch_ops", None),
}

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
    deferred = backend is None and packed.device.type == "cpu" and _compiling.defer(math.prod(shape))
    module = pick_backend(kind, packed.device, "torch" if deferred else backend)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=packed.device)
    else:
        check_out(out, shape, dtype, packed)
    if packed.device.type != "meta":
        with torch.no_grad():
            for piece, where in _pieces(packed, out, kind):
                module.dequantize_into(piece, kind, where)
    return out


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


def pick_backend(kind: GGMLType, device: torch.device, name: str | None = None) -> Backend:
    """The module of backend ``name``, or of the fastest one that is there for ``kind`` on ``device``.

    Raises ValueError for a name that is not known or not for this device, RuntimeError for one that cannot run.
    """
    if name is not None:
        return _named(kind, device, name)
    fits = (each for each, known in BACKENDS.items() if known.device in (None, device.type))
    return _module(next(each for each in fits if _absent(each) is None and kind.name in _module(each).SUPPORTED))


def _named(kind: GGMLType, device: torch.device, name: str) -> Backend:
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r} of dequantize; known: {sorted(BACKENDS)}")
    only, module = BACKENDS[name].device, _module(name)
    if only not in (None, device.type) and device.type != "meta":
        raise ValueError(f"backend {name!r} runs on {only}, and the packed tensor is on {device.type}")
    if reason := _absent(name):
        raise RuntimeError(f"backend {name!r} cannot dequantize here: {reason}")
    if kind.name not in module.SUPPORTED:
        raise ValueError(f"backend {name!r} has no {kind.name}; it has {sorted(module.SUPPORTED)}")
    return module


@cache
def _module(name: str) -> Backend:
    return cast(Backend, import_module(BACKENDS[name].module))


@cache
def _absent(name: str) -> str | None:
    return _module(name).absent()


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
