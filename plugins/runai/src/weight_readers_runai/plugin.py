# SPDX-License-Identifier: Apache-2.0
"""The hooks of reader ``runai_streamer``. Light: torch and the backend are imported when the reader is made."""

from __future__ import annotations

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

NAME = "runai_streamer"
FEATURES = frozenset(
    {
        Feature.KEY_FILTER,
        Feature.SLICES,
        Feature.MULTI_SLICES,
        Feature.READ_INTO,
        Feature.CONCURRENT,
        Feature.BOUNDED_MEMORY,
    }
)
STORE_FEATURES = frozenset({Feature.LISTS, Feature.FETCHES, Feature.DIGESTS})
OPTIONS = frozenset({"memory_limit", "concurrency", "order", "timeout", "direct_io"})
STORE_OPTIONS = {
    "s3": frozenset({"endpoint", "region", "path_style", "unsigned", "profile"}),
    "gs": frozenset({"endpoint", "unsigned", "project"}),
}
"""Those of each kind of store; all are offered where its scheme is."""


def declared() -> ReaderInfo:
    """The reader as it is with the backend that is installed."""
    from weight_readers_runai.probe import DISTRIBUTION, PACKAGE, probe

    backend = probe()
    stores = backend.schemes - {"file"}
    return ReaderInfo(
        name=NAME,
        summary=_summary(backend.schemes),
        formats=frozenset({"safetensors"}),
        schemes=backend.schemes,
        more_schemes=backend.more_schemes,
        features=FEATURES | (STORE_FEATURES if stores else frozenset()),
        lifetime=Lifetime.OWNED,
        order=Order.FILE_OFFSET,
        alignment=Alignment.NATURAL,
        writes=Writes.OWN,
        options=OPTIONS.union(*(STORE_OPTIONS[scheme] for scheme in stores)),
        requires=(
            Requirement(module="torch", distribution="torch"),
            Requirement(module=PACKAGE, distribution=DISTRIBUTION),
            Requirement(module="weight_readers_safetensors", distribution="weight-readers-safetensors"),
        ),
    )


def _summary(schemes: frozenset[str]) -> str:
    stores = ", ".join(f"{scheme}://" for scheme in sorted(schemes - {"file"}))
    return f"the Run:ai Model Streamer: local files{' and ' + stores if stores else ''}, bounded memory, in file order"


@hookimpl
def weight_readers_describe() -> ReaderInfo:
    return declared()


@hookimpl
def weight_readers_check(request: Request, environment: Environment) -> Declined | None:
    from weight_readers_runai.probe import DISTRIBUTION, probe

    backend = probe()
    if not backend.lacks:
        return None
    return Declined(
        reason=f"{DISTRIBUTION} {backend.version} has no {', '.join(backend.lacks)}",
        fix=f"Update it: {backend.update}",
    )


@hookimpl
def weight_readers_create(options: Mapping[str, Any]) -> WeightReader:
    from weight_readers_runai.reader import StreamerReader

    return StreamerReader(**options)
