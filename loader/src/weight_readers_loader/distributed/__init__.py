# SPDX-License-Identifier: Apache-2.0
"""One checkpoint, many ranks: over a process group of torch.distributed that the caller has made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weight_readers_loader.distributed.checkpoint import DistributedCheckpoint, open_distributed
    from weight_readers_loader.distributed.report import DistributedReport

__all__ = ["DistributedCheckpoint", "DistributedReport", "open_distributed"]


def __getattr__(name: str) -> Any:
    # Late: what a module's targets are is asked of this package by every load, and torch.distributed is not needed.
    if name in ("DistributedCheckpoint", "open_distributed"):
        from weight_readers_loader.distributed import checkpoint

        return getattr(checkpoint, name)
    if name == "DistributedReport":
        from weight_readers_loader.distributed.report import DistributedReport

        return DistributedReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
