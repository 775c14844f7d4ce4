# SPDX-License-Identifier: Apache-2.0
"""The hooks of reader `npz`. Light: the standard library and weight_readers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import Feature, Lifetime, Order, ReaderInfo, Requirement, WeightReader, Writes, hookimpl

INFO = ReaderInfo(
    name="npz",
    summary="what numpy.savez wrote: the wanted members, each read by its exact range",
    formats=frozenset({"npz"}),
    features=frozenset({Feature.KEY_FILTER, Feature.BOUNDED_MEMORY}),
    lifetime=Lifetime.OWNED,
    order=Order.FILE_OFFSET,
    writes=Writes.OWN,
    requires=(
        Requirement(module="torch", distribution="torch"),
        Requirement(module="numpy", distribution="numpy"),
    ),
    fallback=True,
)


@hookimpl
def weight_readers_describe() -> ReaderInfo:
    return INFO


@hookimpl
def weight_readers_create(options: Mapping[str, Any]) -> WeightReader:
    from npz_reader.reader import NpzReader

    return NpzReader(**options)
