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
from weight_readers_loader.budget import HostBudget, bounds
from weight_readers_loader.config.refusals import of_options
from weight_readers_loader.copies import fetched_where_needed
from weight_readers_loader.environment import gathered
from weight_readers_loader.wanted import Wanted

_STEP = 16 << 20


class Chooser:
    """Asks core for a reader, with what is the same in all requests of one checkpoint.

    Where files lie in a store and no reader reads their format there, it asks for a reader of local files, which sees
    copies in ``cache_dir`` (``fetched``).

    Core warns whenever it makes a reader that stands in for another. One checkpoint hears it once: later requests
    ask for the stand-in by its name. What a reader says of the options it is made with is a ConfigError; ``check`` is
    asked about each reader before it is used. Of the machine ``environment`` says what is not to be looked up, and
    ``suppose`` changes what was found. With ``budget`` a reader takes no more of the host's memory; without, no more
    than is left.
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
        suppose: Callable[[Environment], Environment] | None = None,
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
        self._strict = strict
        self._suppose = suppose
        self._environment = _within(budget, environment)
        self._is_here = scheme == "file"
        self._made: dict[tuple[Any, ...], WeightReader] = {}
        self._replaced: dict[str, Selection] = {}

    def request(self, environment: Environment, **needs: Any) -> Request:
        under_way = bounds(_steady_limit(environment), needs.get("largest_tensor"))
        return Request(**{**self._common, "settings": {**under_way, **self._common["settings"]}}, **needs)

    def explain(self, wanted: Wanted | None = None, **needs: Any) -> Selection:
        """What `pick` would decide. Makes no reader."""
        asking = self._asking(wanted, needs)
        return explain_selection(requested=self._requested, **asking)

    def require(self, **needs: Any) -> None:
        """Raise what `pick` would where no reader fits. Makes none otherwise."""
        if self.explain(**needs).chosen is None:
            self.pick(**needs)

    def pick(self, wanted: Wanted | None = None, **needs: Any) -> tuple[WeightReader, Selection]:
        """The reader for ``wanted`` and these needs, and why it is that one.

        A reader that was made before is used again with its parsed headers, where it is picked again.
        """
        asking = self._asking(wanted, needs)
        selection = explain_selection(requested=self._requested, **asking)
        earlier = self._replaced.get(selection.chosen or "")
        if earlier is None:
            return self._reader(asking, selection, self._requested)
        by_name = explain_selection(requested=earlier.chosen, **asking)
        reader, _ = self._reader(asking, by_name, earlier.chosen)
        same = selection.chosen == earlier.chosen
        reader.selection = selection if same else replace(earlier, request=asking["request"])
        return reader, reader.selection

    def _asking(self, wanted: Wanted | None, needs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that core is asked with. The machine is looked at each time: it changes."""
        spans = wanted.spans() if wanted is not None and self._is_here else ()
        environment = gathered(self._environment, spans=spans, device=needs.get("device"))
        if self.budget is not None and self.budget.nbytes is None:
            environment = replace(environment, host_memory_free=None)
        if self._suppose is not None:
            environment = self._suppose(environment)
        request = self.request(environment, **{**(wanted.needs() if wanted is not None else {}), **needs})
        return {"request": request, "environment": environment, "strict": self._strict}

    def _reader(
        self, asking: Mapping[str, Any], selection: Selection, requested: str | None
    ) -> tuple[WeightReader, Selection]:
        reader = self._made.get(_setup(selection))
        if reader is not None:
            reader.selection = selection
            return reader, selection
        request: Request = asking["request"]
        with of_options(request.options, request.settings):
            reader = select_weight_reader(requested=requested, **asking)
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


def _steady_limit(environment: Environment) -> int | None:
    """What is free changes at each look; in steps it does not make a reader of its own for each tensor."""
    limit = environment.host_memory_limit
    if limit is None or limit == environment.host_memory_budget:
        return limit
    return max(limit - limit % _STEP, min(limit, _STEP))


def _setup(selection: Selection) -> tuple[Any, ...]:
    """The chosen reader and the settings it was made with."""
    chosen = selection.candidate(selection.chosen) if selection.chosen else None
    return (chosen.name, *sorted(chosen.settings.items())) if chosen is not None else ()
