# SPDX-License-Identifier: Apache-2.0
"""The hooks of reader ``safetensors``. Light: torch is imported when the reader is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import (
    Alignment,
    Feature,
    Lifetime,
    Order,
    ReaderInfo,
    Requirement,
    WeightReader,
    Writes,
    hookimpl,
)

INFO = ReaderInfo(
    name="safetensors",
    summary="memory-mapped views of safetensors files: no copy, pages that the kernel can drop",
    formats=frozenset({"safetensors"}),
    schemes=frozenset({"file"}),
    devices=frozenset({"cpu"}),
    features=frozenset(
        {Feature.KEY_FILTER, Feature.FILE_MAPPING, Feature.SLICES, Feature.MULTI_SLICES, Feature.BOUNDED_MEMORY}
    ),
    lifetime=Lifetime.MAPPED,
    order=Order.FILE_OFFSET,
    alignment=Alignment.NATURAL,
    writes=Writes.COPY_ON_WRITE,
    options=frozenset({"readonly", "copy", "prefetch"}),
    tunable=frozenset({"prefetch"}),
    requires=(
        Requirement(module="torch", distribution="torch"),
        Requirement(module="weight_readers_safetensors", distribution="weight-readers-safetensors"),
    ),
    fallback=True,
)


@hookimpl
def weight_readers_describe() -> ReaderInfo:
    return INFO


@hookimpl
def weight_readers_create(options: Mapping[str, Any]) -> WeightReader:
    from weight_readers_mmap.reader import MappedReader

    return MappedReader(**options)
