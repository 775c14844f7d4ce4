# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to weights in a model, through the reader that weight-readers selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weight_readers_loader.checkpoint import Checkpoint, open_checkpoint
    from weight_readers_loader.config import LayeredConfig, LoadConfig, layered
    from weight_readers_loader.report import LoadReport

__all__ = ["Checkpoint", "LayeredConfig", "LoadConfig", "LoadReport", "layered", "open_checkpoint"]


def __getattr__(name: str) -> Any:
    # Late, because the command line shares this package and must answer ``--help`` and ``list`` without torch.
    if name in ("Checkpoint", "open_checkpoint"):
        from weight_readers_loader import checkpoint

        return getattr(checkpoint, name)
    if name in ("LayeredConfig", "LoadConfig", "layered"):
        from weight_readers_loader import config

        return getattr(config, name)
    if name == "LoadReport":
        from weight_readers_loader.report import LoadReport

        return LoadReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
