# SPDX-License-Identifier: Apache-2.0
"""The hooks of reader ``pt``. Light: torch is imported when the reader is made."""

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
    name="pt",
    summary="memory-mapped views of what torch.save wrote; nothing a file asks for is imported or run",
    formats=frozenset({"pt"}),
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
        Requirement(module="weight_readers_files", distribution="weight-readers-files"),
    ),
    fallback=True,
)


@hookimpl
def weight_readers_describe() -> ReaderInfo:
    return INFO


@hookimpl
def weight_readers_create(options: Mapping[str, Any]) -> WeightReader:
    from weight_readers_pt.reader import PtReader

    return PtReader(**options)
