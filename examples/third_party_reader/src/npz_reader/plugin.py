# SPDX-License-Identifier: Apache-2.0
"""The hooks of reader `npz`. Light: the standard library and weight_readers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import (
    Feature,
    FileFormat,
    Lifetime,
    Order,
    ReaderInfo,
    Requirement,
    Signature,
    WeightReader,
    Writes,
    hookimpl,
)

INFO = ReaderInfo(
    name="npz",
    summary="what numpy.savez wrote: the wanted members, each read by its exact range",
    formats=frozenset({"npz"}),
    # A zip archive is many things; numpy.savez writes <name>.npy as its first member.
    file_formats=(
        FileFormat(name="npz", suffixes=(".npz",), signatures=(Signature(data=b"PK\x03\x04", contains=b".npy"),)),
    ),
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
