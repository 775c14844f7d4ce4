# SPDX-License-Identifier: Apache-2.0
"""Ways to dequantize on the CPU. ``fresh`` makes its result, as users call it; ``into`` fills memory that exists."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gguf.blocks import Bytes
from weight_readers_gguf.types import BY_NAME

Floats = npt.NDArray[np.float32]

OURS, OURS_TORCH = "ours compiled", "ours torch"
GGUF, GGUF_THREADS, LIBGGUF, GGML_C = "gguf-py", "gguf-py in threads", "libgguf", "ggml C 1 thread"


class Arm:
    """One way. ``takes`` says whether it knows a type, ``absent`` why it cannot run here."""

    into: Callable[[str, Bytes, Floats], Any] | None = None
    module = ""

    def absent(self) -> str | None:
        if importlib.util.find_spec(self.module) is not None:
            return None
        return f"{self.module} is not installed (requirements-bench.txt)"

    def takes(self, name: str) -> bool:
        raise NotImplementedError

    def fresh(self, name: str, packed: Bytes) -> Floats:
        raise NotImplementedError


class Ours(Arm):
    """``dequantize`` of the plugin, by one of its backends; threads are torch's number."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.into = self._into

    def absent(self) -> str | None:
        module: Any = importlib.import_module(f"weight_readers_gguf.dequant.{_MODULES[self._backend]}")
        why: str | None = module.absent()
        return why

    def takes(self, name: str) -> bool:
        return True

    def fresh(self, name: str, packed: Bytes) -> Floats:
        from weight_readers_gguf.dequant import dequantize

        return dequantize(torch.from_numpy(packed), name, backend=self._backend).numpy()

    def _into(self, name: str, packed: Bytes, out: Floats) -> None:
        from weight_readers_gguf.dequant import dequantize

        dequantize(torch.from_numpy(packed), name, out=torch.from_numpy(out), backend=self._backend)


_MODULES = {"compiled": "compiled", "torch": "torch_ops"}


class GGUFPackage(Arm):
    """``gguf.dequantize``: numpy, in one thread."""

    module = "gguf"

    def takes(self, name: str) -> bool:
        import gguf

        return BY_NAME[name].id in {kind.value for kind in gguf.quants._type_traits}

    def fresh(self, name: str, packed: Bytes) -> Floats:
        import gguf

        return gguf.dequantize(packed, gguf.GGMLQuantizationType(BY_NAME[name].id))


class GGUFThreads(GGUFPackage):
    """The same with the rows in as many parts as there are threads: what a user could make of it."""

    def fresh(self, name: str, packed: Bytes) -> Floats:
        threads = torch.get_num_threads()
        parts = np.array_split(packed, threads)
        call = super().fresh
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(lambda part: call(name, part), parts)))


class LibGGUF(Arm):
    """``libgguf.dequantize_rows``, which starts ``LIBGGUF_NUM_THREADS`` threads of its own."""

    module = "libgguf"

    def __init__(self) -> None:
        self.into = self._into

    def takes(self, name: str) -> bool:
        import libgguf

        return BY_NAME[name].id in libgguf._SUPPORTED_QUANTIZED_QTYPES

    def fresh(self, name: str, packed: Bytes) -> Floats:
        import libgguf

        os.environ["LIBGGUF_NUM_THREADS"] = str(torch.get_num_threads())
        found: Floats = libgguf.dequantize_rows(packed, BY_NAME[name].id)
        return found

    def _into(self, name: str, packed: Bytes, out: Floats) -> None:
        import libgguf

        os.environ["LIBGGUF_NUM_THREADS"] = str(torch.get_num_threads())
        libgguf.dequantize_rows_into_raw(BY_NAME[name].id, packed, out, *out.shape)


class GGML(Arm):
    """``to_float`` of ggml's C code, called once for all rows."""

    module = "libggml"

    def __init__(self) -> None:
        self.into = self._into

    def takes(self, name: str) -> bool:
        return _to_float(name) is not None

    def fresh(self, name: str, packed: Bytes) -> Floats:
        out = np.empty((len(packed), _columns(name, packed)), np.float32)
        self._into(name, packed, out)
        return out

    def _into(self, name: str, packed: Bytes, out: Floats) -> None:
        if (to_float := _to_float(name)) is None:
            raise LookupError(f"ggml has no to_float of {name}")
        to_float(packed.ctypes.data, out.ctypes.data, out.size)


class _Traits(ctypes.Structure):
    """``ggml_type_traits`` of ggml.h."""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    ]


@cache
def _to_float(name: str) -> Callable[[int, int, int], None] | None:
    import libggml

    library = ctypes.CDLL(str(next(Path(libggml.__path__[0]).glob("lib*/libggml-base.so"))))
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    address = library.ggml_get_type_traits(BY_NAME[name].id).contents.to_float
    if not address:
        return None
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)


def _columns(name: str, packed: Bytes) -> int:
    bytes_per_row: int = packed.shape[1]
    return bytes_per_row // BY_NAME[name].nbytes * BY_NAME[name].block


ARMS: Mapping[str, Arm] = {
    OURS: Ours("compiled"),
    OURS_TORCH: Ours("torch"),
    GGUF: GGUFPackage(),
    GGUF_THREADS: GGUFThreads(),
    LIBGGUF: LibGGUF(),
    GGML_C: GGML(),
}
