# SPDX-License-Identifier: Apache-2.0
"""Reader ``gguf`` of weight-readers: packed weights of GGUF files, and what computes with them.

The names below are imported when they are first used: the hook module stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weight_readers_gguf.checkpoint import GGUFCheckpoint, read_checkpoint
    from weight_readers_gguf.dequant import dequantize
    from weight_readers_gguf.header import read_header
    from weight_readers_gguf.methods.config import GGUFConfig
    from weight_readers_gguf.model import load_packed, prepare_module, reject_lora_on_packed_weights
    from weight_readers_gguf.reader import GGUFReader

__all__ = [
    "GGUFCheckpoint",
    "GGUFConfig",
    "GGUFReader",
    "dequantize",
    "load_packed",
    "prepare_module",
    "read_checkpoint",
    "read_header",
    "reject_lora_on_packed_weights",
]

_MODULES = {
    "GGUFCheckpoint": "checkpoint",
    "GGUFConfig": "methods.config",
    "GGUFReader": "reader",
    "dequantize": "dequant",
    "load_packed": "model",
    "prepare_module": "model",
    "read_checkpoint": "checkpoint",
    "read_header": "header",
    "reject_lora_on_packed_weights": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
