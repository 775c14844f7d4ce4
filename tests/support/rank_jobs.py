# SPDX-License-Identifier: Apache-2.0
"""What the ranks of `support.ranks` run. At the top of a module, so that they find it."""

from __future__ import annotations

from typing import Any

import torch

from support.tensors import contents
from weight_readers_loader.distributed import open_distributed


def read(rank: int, path: Any, how: str, *, only: tuple[int, ...] | None = None, **options: Any) -> Any:
    """The contents of a state dict as this rank has it, and its report."""
    group = None if only is None else torch.distributed.new_group(only)
    if only is not None and rank not in only:
        return None
    load = {name: options.pop(name) for name in ("key_filter", "slices", "device") if name in options}
    path = path[rank] if isinstance(path, list) else path
    checkpoint = open_distributed(path, how=how, group=group, **options)
    return contents(checkpoint.state_dict(**load).items()), checkpoint.report
