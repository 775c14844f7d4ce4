# SPDX-License-Identifier: Apache-2.0
"""What counts for each kind of object storage here: settings in words with where they come from, never a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weight_readers import (
    Feature,
    ListsFiles,
    ReaderInfo,
    available_reader_names,
    describe_reader,
    select_weight_reader,
)


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """``settings`` of ``scheme`` as ``reader`` takes them; else the ``fault`` in them, or what would ``install`` it."""

    scheme: str
    reader: str
    settings: Mapping[str, str] | None = None
    fault: str | None = None
    install: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def lines(self) -> list[str]:
        head = f"{self.scheme}://: "
        if self.settings is None:
            return [head + (f"broken: {self.fault}" if self.fault else f"not offered: {self.install}")]
        return [f"{head}{self.reader}", *(f"  {name}: {value}" for name, value in self.settings.items())]


def store_settings() -> list[StoreSettings]:
    """Of every scheme that an installed reader lists, or would list with another package. Asks no store."""
    infos = [describe_reader(name) for name in available_reader_names()]
    return sorted((each for info in infos for each in _of(info)), key=lambda each: (each.scheme, each.reader))


def _of(info: ReaderInfo) -> Iterator[StoreSettings]:
    for scheme, install in info.more_schemes.items():
        yield StoreSettings(scheme=scheme, reader=info.name, install=install)
    if Feature.LISTS in info.features:
        for scheme in info.schemes - {"file"}:
            yield _effective(info.name, scheme)


def _effective(reader: str, scheme: str) -> StoreSettings:
    need: dict[str, Any] = {"schemes": frozenset({scheme}), "needs": frozenset({Feature.LISTS})}
    try:
        lister = select_weight_reader(requested=reader, strict=True, **need)
        if not isinstance(lister, ListsFiles):
            raise TypeError(f"reader {reader!r} declares that it lists and has no place()")
        return StoreSettings(scheme=scheme, reader=reader, settings=lister.place(f"{scheme}://bucket/"))
    except Exception as error:  # Whatever keeps a store from being used is what the doctor looks for.
        return StoreSettings(scheme=scheme, reader=reader, fault=f"{type(error).__name__}: {error}")
