# SPDX-License-Identifier: Apache-2.0
"""Whether files of a store are read there or copied first, and by whom."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import weight_readers
from weight_readers import Feature, FetchesRanges, PluginContractError, ReaderInfo, WeightReader, select_weight_reader
from weight_readers_loader.config.refusals import of_options
from weight_readers_loader.copies.cache import cache_folder
from weight_readers_loader.copies.reader import CopiesReader


class Fetched:
    """Files of ``scheme`` brought to a local cache. The reader that fetches is made when it is needed first.

    ``options`` are those that were given for all readers of the checkpoint.
    """

    def __init__(
        self,
        form: str,
        scheme: str,
        fetcher: ReaderInfo,
        options: Mapping[str, Any],
        cache_dir: str | os.PathLike[str] | None,
    ) -> None:
        self.cache = cache_folder(cache_dir)
        self._form = form
        self._scheme = scheme
        self._info = fetcher
        self._options = {name: value for name, value in options.items() if name in fetcher.options}
        self._fetcher: FetchesRanges | None = None

    def left(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options for the reader of the copies: all that the fetching one does not have."""
        return {name: value for name, value in options.items() if name not in self._options}

    def reading(self, reader: WeightReader) -> WeightReader:
        """``reader`` over the copies."""
        fetcher = self._made()
        place = str(self._options.get("endpoint", "")) or _endpoint(fetcher, self._scheme)
        return CopiesReader(reader, fetcher, format=self._form, place=place, cache=self.cache)

    def _made(self) -> FetchesRanges:
        if self._fetcher is None:
            need: dict[str, Any] = {"schemes": frozenset({self._scheme}), "needs": frozenset({Feature.FETCHES})}
            with of_options(self._options):
                made = select_weight_reader(requested=self._info.name, options=self._options, strict=True, **need)
            if not isinstance(made, FetchesRanges):
                breach = "declares that it fetches and has no version and fetch"
                raise PluginContractError(
                    f"reader {made.info.name!r} {breach}", name=made.info.name, reason=breach, code="broken"
                )
            self._fetcher = made
        return self._fetcher


def _endpoint(fetcher: object, scheme: str) -> str:
    place = getattr(fetcher, "place", None)
    return str(place(f"{scheme}://bucket/").get("endpoint", "")) if place is not None else ""


def fetched_where_needed(
    form: str, scheme: str, options: Mapping[str, Any], cache_dir: str | os.PathLike[str] | None
) -> Fetched | None:
    """None where files are local, where a reader reads the format in that store, or where nothing can be done."""
    if scheme == "file":
        return None
    infos = [weight_readers.describe_reader(name) for name in weight_readers.available_reader_names()]
    of_format = [info for info in infos if form in info.formats]
    fetchers = [info for info in infos if Feature.FETCHES in info.features and scheme in info.schemes]
    if any(scheme in info.schemes for info in of_format) or not fetchers:
        return None
    return Fetched(form, scheme, fetchers[0], options, cache_dir) if of_format else None
