# SPDX-License-Identifier: Apache-2.0
"""The kinds of object storage: for each scheme its settings, by options and environment, and its client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weight_readers_runai import gcs_settings, s3_settings
from weight_readers_runai.gcs import GcsStore
from weight_readers_runai.plugin import NAME, STORE_OPTIONS
from weight_readers_runai.s3 import S3Store
from weight_readers_runai.settings import StoreSettings
from weight_readers_runai.store import Store


class _Kind(NamedTuple):
    resolve: Callable[..., StoreSettings]
    store: type[Store]


_KINDS = {
    "s3": _Kind(s3_settings.current, S3Store),
    "gs": _Kind(gcs_settings.resolve, GcsStore),
}


def store_of(scheme: str, given: Mapping[str, Any], timeout: float) -> Store:
    """The store of a scheme, with the options of the reader that were given (None where not).

    Raises ValueError for an option of another kind of store, and for an endpoint that is none.
    """
    kind, options = _KINDS[scheme], {name: value for name, value in given.items() if value is not None}
    if foreign := sorted(options.keys() - STORE_OPTIONS[scheme]):
        takes = ", ".join(sorted(STORE_OPTIONS[scheme]))
        raise ValueError(f"option {foreign[0]!r} of reader {NAME!r} is not for {scheme}://, which takes {takes}")
    return kind.store(kind.resolve(**options), timeout)
