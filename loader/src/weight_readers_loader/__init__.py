# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to weights in a model, through the reader that weight-readers selects."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weight_readers_loader.checkpoint import Checkpoint
    from weight_readers_loader.config import LayeredConfig, LoadConfig, layered
    from weight_readers_loader.opening import open_checkpoint
    from weight_readers_loader.report import LoadReport

__all__ = ["Checkpoint", "LayeredConfig", "LoadConfig", "LoadReport", "layered", "open_checkpoint"]

_MODULES = {
    "Checkpoint": "checkpoint",
    "LayeredConfig": "config",
    "LoadConfig": "config",
    "LoadReport": "report",
    "layered": "config",
    "open_checkpoint": "opening",
}


def __getattr__(name: str) -> Any:
    # Late, because the command line shares this package and must answer ``--help`` and ``list`` without torch.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
