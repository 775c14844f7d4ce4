# SPDX-License-Identifier: Apache-2.0
"""The options of the reader: checked when it is made, with the name and the range in the error."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weight_readers import Feature, Order, ReaderInfo
from weight_readers_files import FilePlan
from weight_readers_runai.plugin import NAME, STORE_OPTIONS

MIB = 1 << 20
DIRECT_IO = ("auto", "on", "off")
ORDERS = ("file-offset", "completion")

DEFAULT_MEMORY_LIMIT = 128 * MIB
"""Enough to keep 16 requests of 8 MiB under way."""
DEFAULT_CONCURRENCY = 8
_CONCURRENCY = "RUNAI_STREAMER_CONCURRENCY"


@dataclass(frozen=True, kw_only=True)
class Options:
    """``memory_limit`` in bytes, None for the default; ``concurrency`` None leaves it to the backend."""

    memory_limit: int | None = None
    concurrency: int | None = None
    order: str = "file-offset"
    timeout: float = 30.0
    direct_io: str = "auto"
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    unsigned: bool | None = None
    profile: str | None = None
    project: str | None = None

    def __post_init__(self) -> None:
        _whole("memory_limit", self.memory_limit, 1, 1 << 50, "bytes")
        _whole("concurrency", self.concurrency, 1, 1024, "threads")
        _one_of("order", self.order, ORDERS)
        _one_of("direct_io", self.direct_io, DIRECT_IO)
        _seconds("timeout", self.timeout)
        for name in ("endpoint", "region", "profile", "project"):
            _or_none(name, getattr(self, name), str, "a text that is not empty")
        for name in ("path_style", "unsigned"):
            _or_none(name, getattr(self, name), bool, "True or False")

    def declared(self, info: ReaderInfo) -> ReaderInfo:
        """``info`` as it is with these options."""
        features = info.features | {Feature.DIRECT_IO} if self.direct_io == "on" else info.features
        return replace(info, order=Order(self.order), features=features)

    def threads(self) -> dict[str, str]:
        """The variable of the native library for its threads; one that the user set is left alone."""
        if self.concurrency is None and _CONCURRENCY in os.environ:
            return {}
        return {_CONCURRENCY: str(self.concurrency or DEFAULT_CONCURRENCY)}

    def store(self) -> dict[str, Any]:
        """The options of object storage, None for those that were not given."""
        return {name: getattr(self, name) for name in sorted(frozenset().union(*STORE_OPTIONS.values()))}

    def limit(self, plans: Sequence[FilePlan], default: int = DEFAULT_MEMORY_LIMIT) -> int:
        """How many bytes may be under way. Raises ValueError where that does not hold the largest tensor."""
        nbytes, name, path = max(
            ((each.nbytes, each.name, plan.path) for plan in plans for each in plan.wanted), default=(0, "", "")
        )
        if self.memory_limit is None:
            return max(default, nbytes)
        if self.memory_limit < nbytes:
            raise ValueError(
                f"{_subject('memory_limit')} must be at least {nbytes} bytes, what tensor {name!r} of {path} takes, "
                f"not {self.memory_limit}"
            )
        return self.memory_limit


def _or_none(name: str, value: object, kind: type, words: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{_subject(name)} must be {words}, not {value!r}")
    if value == "":
        raise ValueError(f"{_subject(name)} must be {words}")


def _subject(name: str) -> str:
    return f"option {name!r} of reader {NAME!r}"


def _whole(name: str, value: object, low: int, high: int, unit: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{_subject(name)} must be a whole number of {unit} from {low} to {high}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{_subject(name)} must be from {low} to {high} {unit}, not {value}")


def _one_of(name: str, value: object, words: Sequence[str]) -> None:
    if value not in words:
        raise ValueError(f"{_subject(name)} must be one of {', '.join(words)}, not {value!r}")


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{_subject(name)} must be a number of seconds from 1 to 86400, not {value!r}")
    if not 1 <= value <= 86400:
        raise ValueError(f"{_subject(name)} must be from 1 to 86400 seconds, not {value}")
