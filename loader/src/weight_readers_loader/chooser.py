# SPDX-License-Identifier: Apache-2.0
"""The readers of one checkpoint: asked of core once per kind of request, kept with what they have parsed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weight_readers import (
    Environment,
    ReaderInfo,
    Request,
    Selection,
    WeightReader,
    explain_selection,
    select_weight_reader,
)
from weight_readers_loader.budget import HostBudget
from weight_readers_loader.config.refusals import of_options
from weight_readers_loader.copies import fetched_where_needed


class Chooser:
    """Asks core for a reader, with what is the same in all requests of one checkpoint.

    Where files lie in a store and no reader reads their format there, it asks for a reader of local files, which sees
    copies in ``cache_dir`` (``fetched``).

    Core warns whenever it makes a reader that stands in for another. One checkpoint hears it once: later requests
    ask for the stand-in by its name. What a reader says of the options it is made with is a ConfigError; ``check`` is
    asked about each reader before it is used. With ``budget`` a reader takes no more of the host's memory.
    """

    def __init__(
        self,
        *,
        format: str,  # noqa: A002 - the word of `Request`
        scheme: str = "file",
        reader: str | None = None,
        strict: bool | None = None,
        prefer: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        environment: Environment | None = None,
        budget: HostBudget | None = None,
        check: Callable[[ReaderInfo], None] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.fetched = fetched_where_needed(format, scheme, options or {}, cache_dir)
        self._common: dict[str, Any] = {
            "format": format,
            "schemes": frozenset({scheme if self.fetched is None else "file"}),
            "prefer": tuple(prefer),
            "options": options or {} if self.fetched is None else self.fetched.left(options or {}),
            "settings": settings or {},
            "engine": engine or {},
        }
        self._requested = reader
        self._check = check
        self.budget = budget
        self._keywords: dict[str, Any] = {"strict": strict, "environment": _within(budget, environment)}
        self._made: dict[tuple[Any, ...], WeightReader] = {}
        self._replaced: dict[str, Selection] = {}

    def request(self, **needs: Any) -> Request:
        if self.budget is None:
            return Request(**self._common, **needs)
        bounds = self.budget.bounds(needs.get("largest_tensor"))
        return Request(**{**self._common, "settings": {**bounds, **self._common["settings"]}}, **needs)

    def explain(self, **needs: Any) -> Selection:
        """What `pick` would decide. Makes no reader."""
        return explain_selection(request=self.request(**needs), requested=self._requested, **self._keywords)

    def require(self, **needs: Any) -> None:
        """Raise what `pick` would where no reader fits. Makes none otherwise."""
        if self.explain(**needs).chosen is None:
            self.pick(**needs)

    def pick(self, **needs: Any) -> tuple[WeightReader, Selection]:
        """The reader for these needs, and why it is that one.

        A reader that was made before is used again with its parsed headers, where it is picked again.
        """
        request, selection = self.request(**needs), self.explain(**needs)
        earlier = self._replaced.get(selection.chosen or "")
        if earlier is None:
            return self._reader(request, selection, self._requested)
        by_name = explain_selection(request=request, requested=earlier.chosen, **self._keywords)
        reader, _ = self._reader(request, by_name, earlier.chosen)
        same = selection.chosen == earlier.chosen
        reader.selection = selection if same else replace(earlier, request=request)
        return reader, reader.selection

    def _reader(self, request: Request, selection: Selection, requested: str | None) -> tuple[WeightReader, Selection]:
        reader = self._made.get(_setup(selection))
        if reader is not None:
            reader.selection = selection
            return reader, selection
        with of_options(request.options, request.settings):
            reader = select_weight_reader(request=request, requested=requested, **self._keywords)
        if self._check is not None:
            self._check(reader.info)
        made = reader.selection
        assert made is not None  # noqa: S101 - core sets it on every reader it makes
        if self.fetched is not None:
            reader = self.fetched.reading(reader)
        self._made[_setup(made)] = reader
        if made.fallback or made.chosen != selection.chosen:
            self._replaced[selection.chosen or ""] = made
        return reader, made


def _within(budget: HostBudget | None, environment: Environment | None) -> Environment | None:
    if budget is None:
        return environment
    if environment is not None and environment.host_memory_budget is not None:
        raise ValueError("host_budget and the host_memory_budget of environment= are one thing: give one of them")
    return replace(environment or Environment(), host_memory_budget=budget.nbytes)


def _setup(selection: Selection) -> tuple[Any, ...]:
    """The chosen reader and the settings it was made with."""
    chosen = selection.candidate(selection.chosen) if selection.chosen else None
    return (chosen.name, *sorted(chosen.settings.items())) if chosen is not None else ()
