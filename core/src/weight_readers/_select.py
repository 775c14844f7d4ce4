# SPDX-License-Identifier: Apache-2.0
"""From a request to a reader: explain, create, and say aloud when it is not the one that was asked for."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from weight_readers import _catalogue
from weight_readers._plugins import Plugin, failure
from weight_readers._settings import close_match
from weight_readers.capabilities import Environment, Feature, Request
from weight_readers.errors import (
    NoSuitableReaderError,
    PluginContractError,
    ReaderFallbackWarning,
    ReaderUnavailableError,
    WeightReadersError,
)
from weight_readers.reader import WeightReader
from weight_readers.registry import Registry
from weight_readers.selection import Candidate, Selection

# Frames between `warnings.warn` here and the code that called `select_weight_reader`.
_CALLER = 4


def merge_request(request: Request | None, needs: Mapping[str, Any], *, needs_key_filter: bool) -> Request:
    """One request out of a `Request` and keywords. Raises TypeError for a keyword that is no field of `Request`."""
    known = [f.name for f in fields(Request)]
    for name in needs:
        if name not in known:
            raise TypeError(f"{name!r} is no field of Request. {close_match(name, known) or f'Its fields: {known}'}")
    merged = replace(request or Request(), **needs)
    return replace(merged, needs=merged.needs | {Feature.KEY_FILTER}) if needs_key_filter else merged


def select(
    registry: Registry,
    request: Request,
    *,
    requested: str | None,
    strict: bool | None,
    environment: Environment | None,
) -> WeightReader:
    """A reader, made and ready, with its ``selection``.

    A backend that fails while the reader is made is published as broken and the selection is made again: each
    round takes one reader away, so that the loop ends. Once a reader is returned nothing is tried again.
    """
    while True:
        selection = registry.explain(request, requested=requested, strict=strict, environment=environment)
        plugin = registry.plugin(selection.chosen) if selection.chosen is not None else None
        if plugin is None:
            raise _refusal(registry, selection)
        try:
            reader = _created(plugin, selection)
        except ReaderUnavailableError as error:
            _publish_broken(registry, plugin, error)
            if selection.strict:
                error.selection = selection
                raise
            if requested is None:
                _warn_of_failure(registry, plugin.name, error, request, environment)
            continue
        if selection.fallback:
            _warn_of_fallback(selection)
        reader.selection = selection
        return reader


def _created(plugin: Plugin, selection: Selection) -> WeightReader:
    chosen = selection.candidate(plugin.name)
    settings = dict(chosen.settings) if chosen else {}
    conflicting = {k for k, v in settings.items() if selection.request.options.get(k, v) != v}
    if conflicting:
        raise ValueError(f"option {sorted(conflicting)} of reader {plugin.name!r} contradicts the rest of the request")
    reader = plugin.create({**settings, **selection.request.options})
    if lacking := selection.request.needs - reader.info.features:
        what = f"it promised {sorted(f.value for f in lacking)} and came without"
        raise failure(
            PluginContractError, what, name=plugin.name, distribution=plugin.distribution, version=plugin.version
        )
    return reader


def _publish_broken(registry: Registry, plugin: Plugin, error: ReaderUnavailableError) -> None:
    cause = error.__cause__ or error
    trace = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
    registry.publish(replace(plugin, error=error, trace=trace))


def _warn_of_failure(
    registry: Registry, name: str, error: ReaderUnavailableError, request: Request, environment: Environment | None
) -> None:
    """The policy's own pick failed to start: whoever is next is not a silent replacement."""
    following = registry.explain(request, environment=environment)
    if following.chosen is not None:
        warning = ReaderFallbackWarning(asked=name, used=following.chosen, reason=error.what, fix=error.fix)
        warnings.warn(warning, stacklevel=_CALLER + 1)


def _warn_of_fallback(selection: Selection) -> None:
    asked = selection.candidate(selection.requested or "")
    if asked is not None and selection.chosen is not None:
        warning = ReaderFallbackWarning(asked=asked.name, used=selection.chosen, reason=asked.reason, fix=asked.fix)
        warnings.warn(warning, stacklevel=_CALLER + 1)


def _refusal(registry: Registry, selection: Selection) -> WeightReadersError:
    if selection.requested is None:
        return _none_fits(selection)
    asked = selection.candidate(selection.requested)
    plugin = registry.plugin(selection.requested)
    if plugin is not None and plugin.error is not None:
        plugin.error.selection = selection
        return plugin.error
    return ReaderUnavailableError(
        f"reader {selection.requested!r} cannot be used here: {asked.reason if asked else 'not installed'}",
        name=selection.requested,
        code=asked.code if asked else None,
        fix=asked.fix if asked else None,
        distribution=asked.distribution if asked else None,
        selection=selection,
    )


def _none_fits(selection: Selection) -> NoSuitableReaderError:
    wanted = selection.request.format
    subject = f"no installed weight reader fits format {wanted!r}" if wanted else "no installed weight reader fits"
    if not selection.candidates:
        what = "no weight reader is installed" + (f", and format {wanted!r} is asked for" if wanted else "")
        return NoSuitableReaderError(what, selection=selection, fix=_catalogue.format_hint(wanted))
    reasons = "; ".join(f"{c.name}: {c.reason}" for c in selection.candidates)
    return NoSuitableReaderError(f"{subject} ({reasons})", selection=selection, fix=_fix(selection.candidates, wanted))


def _fix(candidates: tuple[Candidate, ...], wanted: str | None) -> str | None:
    """Install a reader for the format where nobody reads it; else the first mend that a candidate names."""
    if all(c.code in ("format", "scheme") for c in candidates):
        return _catalogue.format_hint(wanted) if wanted else None
    return next((c.fix for c in candidates if c.fix), None)
