# SPDX-License-Identifier: Apache-2.0
"""The hooks of reader ``threaded``. Light: torch is imported when the reader is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from weight_readers import (
    Alignment,
    Declined,
    Environment,
    Feature,
    Lifetime,
    Order,
    ReaderInfo,
    Request,
    Requirement,
    WeightReader,
    Writes,
    hookimpl,
)

INFO = ReaderInfo(
    name="threaded",
    summary="parallel reads straight into tensors: exact ranges, bounded memory, in file order",
    formats=frozenset({"safetensors"}),
    schemes=frozenset({"file"}),
    devices=frozenset({"cpu", "cuda"}),
    features=frozenset(
        {
            Feature.KEY_FILTER,
            Feature.SLICES,
            Feature.MULTI_SLICES,
            Feature.READ_INTO,
            Feature.CONCURRENT,
            Feature.BOUNDED_MEMORY,
        }
    ),
    lifetime=Lifetime.OWNED,
    order=Order.FILE_OFFSET,
    alignment=Alignment.NATURAL,
    writes=Writes.OWN,
    options=frozenset({"num_threads", "chunk_bytes", "max_in_flight_bytes", "direct_io", "huge_pages"}),
    tunable=frozenset({"num_threads"}),
    requires=(
        Requirement(module="torch", distribution="torch"),
        Requirement(module="weight_readers_safetensors", distribution="weight-readers-safetensors"),
    ),
)


@hookimpl
def weight_readers_describe() -> ReaderInfo:
    return INFO


@hookimpl
def weight_readers_check(request: Request, environment: Environment) -> Declined | None:
    if not hasattr(os, "preadv"):
        return Declined(reason="this platform has no preadv", fix="Use reader 'safetensors'")
    return None


@hookimpl
def weight_readers_create(options: Mapping[str, Any]) -> WeightReader:
    from weight_readers_threaded.reader import ThreadedReader

    return ThreadedReader(**options)
