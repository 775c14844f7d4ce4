# SPDX-License-Identifier: Apache-2.0
"""``explain``: the selection that a load would make, from the headers and without reading a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weight_readers import (
    CheckpointError,
    NoSuitableReaderError,
    Selection,
    WeightReadersError,
    select_weight_reader,
)
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.commands.output import errors
from weight_readers_loader.preflight import preflight
from weight_readers_loader.remote import HEADER_FIRST, headers_of
from weight_readers_loader.resolve import Layout
from weight_readers_loader.wanted import Wanted
from weight_readers_loader.wording import counted


@dataclass(frozen=True, kw_only=True)
class Explained:
    layout: Layout
    selection: Selection
    doubt: str | None = None
    error: WeightReadersError | None = None

    def lines(self, reference: str) -> list[str]:
        files = counted(len(self.layout.files), "file")
        lines = [f"{reference}: {self.layout.format}, {files}", self.selection.explain()]
        scheme = "" if self.layout.scheme == "file" else f"{self.layout.scheme} "
        lines += [f"  {scheme}{name}: {value}" for name, value in self.layout.place.items()]
        return lines + ([f"notice: {self.doubt}"] if self.doubt else [])

    def to_json(self) -> dict[str, Any]:
        return {
            "files": list(self.layout.paths),
            "place": dict(self.layout.place),
            "selection": self.selection.to_json(),
            "notices": [self.doubt] if self.doubt else [],
            "errors": errors(self.error) if self.error else [],
        }


def explain(
    layout: Layout,
    *,
    key_filter: Callable[[str], bool] | None,
    device: str,
    owned: bool,
    into_existing: bool,
    **asked: Any,
) -> Explained:
    """The same request that a load makes. ``asked``: the keyword arguments of `Chooser`.

    Where no reader fits, ``error`` is what a load would end with, the command that mends it included.
    """
    chooser = Chooser(format=layout.format, scheme=layout.scheme, **asked)
    needs, doubt = _needs(layout, key_filter, asked.get("options", {}) if layout.scheme != "file" else {})
    kept = device.split(":")[0] == "cpu" and not into_existing
    request = {**needs, "device": device, "owned": owned, "kept_on_host": kept, "into_targets": into_existing}
    selection, error = chooser.explain(**request), None
    if selection.chosen is None:
        try:
            chooser.pick(**request)
        except WeightReadersError as refusal:
            error = refusal
    return Explained(layout=layout, selection=selection, doubt=doubt, error=error)


def _needs(
    layout: Layout, key_filter: Callable[[str], bool] | None, options: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """What the headers ask of a reader; less where they cannot be read, and then why."""
    if layout.remote is not None and layout.format not in HEADER_FIRST:
        return _without_headers(key_filter), f"the headers of {layout.format} files are read after the download"
    try:
        reader = select_weight_reader(format=layout.format, schemes=frozenset({layout.scheme}), options=dict(options))
        checked = preflight(layout, headers_of(layout, reader), strict=False)
    except (CheckpointError, NoSuitableReaderError) as error:
        needs = _without_headers(key_filter)
        return needs, None if isinstance(error, NoSuitableReaderError) else f"a load would end with: {error}"
    return Wanted.of(checked.tensors, key_filter, restricted=checked.restricted).needs(), None


def _without_headers(key_filter: Callable[[str], bool] | None) -> Mapping[str, Any]:
    wanted = Wanted(tensors={}, whole=key_filter is None)
    return {name: value for name, value in wanted.needs().items() if name != "bytes_wanted"}
