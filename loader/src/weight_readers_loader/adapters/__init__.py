# SPDX-License-Identifier: Apache-2.0
"""Adapters: what lies between the tensors of a checkpoint and those that a model wants, planned before any read."""

from weight_readers_loader.adapters.chain import Adapted
from weight_readers_loader.adapters.dtypes import Dtype
from weight_readers_loader.adapters.made import Adapter, Made
from weight_readers_loader.adapters.names import Prefix, Rename
from weight_readers_loader.adapters.registry import adapter_named, available_adapters
from weight_readers_loader.adapters.rows import Concat, GroupedQKV, Split

__all__ = [
    "Adapted",
    "Adapter",
    "Concat",
    "Dtype",
    "GroupedQKV",
    "Made",
    "Prefix",
    "Rename",
    "Split",
    "adapter_named",
    "available_adapters",
]
