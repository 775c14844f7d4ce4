# SPDX-License-Identifier: Apache-2.0
"""Which backend dequantizes: the fastest one that is installed, and that works when it is first used."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from weight_readers_gguf.types import GGMLType

__all__ = ["BACKENDS", "Backend", "pick_backend"]


class Backend(Protocol):
    """What the module of a backend has."""

    SUPPORTED: frozenset[str]

    def absent(self) -> str | None:
        """Why it cannot run here, as far as that can be told without importing anything, or None."""

    def start(self, kind: GGMLType, /) -> None:
        """Get ready for tensors of ``kind``; raises whatever keeps it from that."""

    def dequantize_into(self, packed: Tensor, kind: GGMLType, out: Tensor, /) -> None:
        """Write contiguous whole blocks to ``out``, contiguous and of the right size and device."""


class _Known(NamedTuple):
    module: str
    device: str | None
    """The only kind of device it runs on."""
    interpreter: str | None = None
    """A variable of the environment that has it run anywhere."""

    def takes(self, device: torch.device) -> bool:
        """Whether it can be asked by name for tensors there; on ``meta`` nothing is computed."""
        return self.device in (None, device.type) or device.type == "meta" or self._interpreted()

    def _interpreted(self) -> bool:
        return self.interpreter is not None and os.environ.get(self.interpreter, "0").lower() in ("1", "true", "on")


# The fastest first; the last one runs everywhere.
BACKENDS: Mapping[str, _Known] = {
    "triton": _Known("weight_readers_gguf.dequant.triton_kernels", "cuda", "TRITON_INTERPRET"),
    "compiled": _Known("weight_readers_gguf.dequant.compiled", "cpu"),
    "torch": _Known("weight_readers_gguf.dequant.torch_ops", None),
}


def pick_backend(kind: GGMLType, device: torch.device, name: str | None = None) -> Backend:
    """The module of backend ``name``, or of the fastest one that works for ``kind`` on ``device``.

    One that is installed and does not work is passed over with a RuntimeWarning, once. Raises ValueError for a name
    that is not known or not for this device, RuntimeError for one that cannot run.
    """
    if name is not None:
        return _named(kind, device, name)
    fits = (each for each, known in BACKENDS.items() if known.device in (None, device.type))
    return _module(next(each for each in fits if _works(each, kind)))


def _works(name: str, kind: GGMLType) -> bool:
    if _absent(name) is not None or kind.name not in _module(name).SUPPORTED:
        return False
    fault = _starts.fault(name, kind)
    if fault is not None:
        _starts.tell(name, fault)
    return fault is None


def _named(kind: GGMLType, device: torch.device, name: str) -> Backend:
    if not isinstance(name, str):
        raise TypeError(f"backend must be one of {sorted(BACKENDS)}, or None, not {name!r}")
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r} of dequantize; known: {sorted(BACKENDS)}")
    known, module = BACKENDS[name], _module(name)
    if not known.takes(device):
        raise ValueError(f"backend {name!r} runs on {known.device}, and the packed tensor is on {device.type}")
    if reason := _absent(name):
        raise RuntimeError(f"backend {name!r} cannot dequantize here: {reason}")
    if kind.name not in module.SUPPORTED:
        raise ValueError(f"backend {name!r} has no {kind.name}; it has {sorted(module.SUPPORTED)}")
    if device.type != "meta" and (fault := _starts.fault(name, kind)) is not None:
        raise RuntimeError(f"backend {name!r} cannot dequantize here: {_said(fault)}") from fault
    return module


class _Starts:
    """What came of the first use of each backend. A fault stands for the rest of the process."""

    def __init__(self) -> None:
        self._ready: set[tuple[str, str]] = set()
        self._faults: dict[str, Exception] = {}
        self._told: dict[str, object] = {}

    def fault(self, name: str, kind: GGMLType) -> Exception | None:
        """What keeps the backend from working, or None. A broken package may raise anything when it is imported."""
        if name in self._faults or (name, kind.name) in self._ready:
            return self._faults.get(name)
        try:
            _module(name).start(kind)
        except MemoryError:
            raise
        except Exception as error:
            return self._faults.setdefault(name, error.with_traceback(None))
        self._ready.add((name, kind.name))
        return None

    def tell(self, name: str, fault: Exception) -> None:
        """Warn, unless that was done: one of several threads does, without a lock that a fork could leave held."""
        mine = object()
        if self._told.setdefault(name, mine) is mine:
            warnings.warn(
                f"backend {name!r} is installed and cannot dequantize here: {_said(fault)}. Torch operations do it"
                f" instead, with the same result and several times slower; mend or uninstall what {name!r} needs",
                RuntimeWarning,
                stacklevel=2,
            )


_starts = _Starts()


def _said(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"


@cache
def _module(name: str) -> Backend:
    return cast(Backend, import_module(BACKENDS[name].module))


@cache
def _absent(name: str) -> str | None:
    return _module(name).absent()
