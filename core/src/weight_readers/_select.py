# SPDX-License-Identifier: Apache-2.0
"""From a request to a reader: explain, create, and say aloud when it is not the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from weight_readers import _catalogue
from weight_readers._arguments import check_arguments
from weight_readers._blame import blamed, failure
from weight_readers._inventory import Inventory
from weight_readers._needs import host_need
from weight_readers._plugins import Broken, Plugin
from weight_readers._settings import warn_of_unknown
from weight_readers._warnings import warn_caller
from weight_readers.capabilities import Feature, Request
from weight_readers.environment import Environment
from weight_readers.errors import (
    BudgetInfeasibleError,
    NoSuitableReaderError,
    PluginContractError,
    ReaderFallbackWarning,
    ReaderUnavailableError,
    WeightReadersError,
)
from weight_readers.policy import Rejected
from weight_readers.reader import WeightReader
from weight_readers.selection import Candidate, Selection, choose
from weight_readers.spelling import did_you_mean

Failures = dict[str, ReaderUnavailableError]
"""Readers whose backend failed to start during this one selection. Not remembered: the cause may pass."""


def merge_request(request: Request | None, needs: Mapping[str, Any], *, needs_key_filter: bool) -> Request:
    """One request out of a `Request` and keywords. Raises TypeError for a keyword that is no field of `Request`."""
    check_arguments(request=request, needs_key_filter=needs_key_filter)
    known = [f.name for f in fields(Request)]
    for name in needs:
        if name not in known:
            raise TypeError(f"{name!r} is no field of Request. {did_you_mean(name, known) or f'Its fields: {known}'}")
    merged = replace(request or Request(), **needs)
    return replace(merged, needs=merged.needs | {Feature.KEY_FILTER}) if needs_key_filter else merged


def explain(
    inventory: Inventory,
    request: Request,
    environment: Environment,
    *,
    requested: str | None,
    strict: bool | None,
    failures: Failures | None = None,
) -> Selection:
    """Judge every reader and pick one, without making it."""
    if requested is not None:
        inventory.check_known(requested)
    warn_of_unknown("Request.prefer", request.prefer, inventory.known_names())
    standings = inventory.standings(request, environment)
    if requested is not None and all(standing.name != requested for standing in standings):
        standings.append(inventory.standing(requested, request, environment))
    for name, error in (failures or {}).items():
        failed = Rejected(code="failed", reason=error.reason, fix=error.fix)
        standings = [replace(s, verdict=failed) if s.name == name else s for s in standings]
    return choose(
        standings,
        request,
        environment,
        requested=requested,
        environment_prefers=inventory.settings.prefer,
        strict=inventory.settings.strict(strict),
    )


def select(
    inventory: Inventory,
    request: Request,
    environment: Environment,
    *,
    requested: str | None,
    strict: bool | None,
) -> WeightReader:
    """A reader, made and ready, with its ``selection``.

    A backend that fails while the reader is made takes part no more, and the selection is made again: each round
    takes one reader away, so that the loop ends. Once a reader is returned nothing is tried again.
    """
    failures: Failures = {}
    while True:
        selection = explain(inventory, request, environment, requested=requested, strict=strict, failures=failures)
        plugin = inventory.plugin(selection.chosen) if selection.chosen is not None else None
        if not isinstance(plugin, Plugin):
            raise _refusal(inventory, selection, failures)
        try:
            reader = _created(plugin, selection)
        except ReaderUnavailableError as error:
            error.selection = selection
            if selection.strict:
                raise
            failures[plugin.info.name] = error
            continue
        _warn_of_replacement(selection, failures)
        return reader


def _created(plugin: Plugin, selection: Selection) -> WeightReader:
    request, chosen = selection.request, selection.candidate(plugin.info.name)
    settings = chosen.settings if chosen else {}
    # What policy sets on its own (copy=True for owned tensors) is no wish of the caller's, and no fault either.
    wished = any(name in request.settings and request.settings[name] is value for name, value in settings.items())
    reader = plugin.create({**settings, **request.options}, of_caller=bool(request.options) or wished)
    if lacking := request.needs - reader.info.features:
        what = f"it promised {', '.join(sorted(f.value for f in lacking))} and its reader came without"
        raise failure(PluginContractError, what, plugin.source)
    with blamed(PluginContractError, "its reader takes no selection:", plugin.source):
        reader.selection = selection
    return reader


def _warn_of_replacement(selection: Selection, failures: Failures) -> None:
    """Whoever stands in for the reader that was asked for, or for the policy's first pick, is not silent."""
    replaced = [selection.requested] if selection.fallback else []
    for name in dict.fromkeys([*replaced, *failures]):
        candidate = selection.candidate(name or "")
        if candidate is not None and selection.chosen is not None:
            warn_caller(
                ReaderFallbackWarning(
                    asked=candidate.name, used=selection.chosen, reason=candidate.reason, fix=candidate.fix
                )
            )


def _refusal(inventory: Inventory, selection: Selection, failures: Failures) -> WeightReadersError:
    if infeasible := _over_budget(inventory, selection):
        return infeasible
    if selection.requested is None:
        return _none_fits(selection, failures)
    error = failures.get(selection.requested)
    plugin = inventory.plugin(selection.requested)
    if error is None and isinstance(plugin, Broken) and not inventory.is_disabled(selection.requested):
        error = plugin.failure()
    if error is None:
        error = _unavailable(selection, selection.requested)
    error.selection = selection
    return error


def _over_budget(inventory: Inventory, selection: Selection) -> BudgetInfeasibleError | None:
    """The error where memory is what stands between the files and every reader of them."""
    request, budget = selection.request, selection.environment.host_memory_limit
    others = [c for c in selection.candidates if c.code not in ("format", "scheme")]
    too_much = [c for c in others if c.code == "over-budget"]
    if budget is None or not too_much or any(c.accepted for c in others):
        return None
    plugins = (inventory.plugin(c.name) for c in too_much)
    needs = [host_need(p.info, request) for p in plugins if isinstance(p, Plugin)]
    needed = min(need for need in needs if need is not None)
    largest = "" if request.largest_tensor is None else f", the largest tensor takes {request.largest_tensor}"
    allowed = budget == selection.environment.host_memory_budget
    there_is = f"the budget has {budget}" if allowed else f"machine and cgroups have {budget} left"
    return BudgetInfeasibleError(
        f"the load needs {needed} bytes of host memory, and {there_is}{largest}",
        selection=selection,
        needed=needed,
        budget=budget,
        largest_tensor=request.largest_tensor,
        fix=next((c.fix for c in too_much if c.fix), None) or "Load less (a key filter or slices), or raise the budget",
    )


def _unavailable(selection: Selection, name: str) -> ReaderUnavailableError:
    asked = selection.candidate(name)
    reason = asked.reason if asked else "it is not installed"
    what = f"reader {name!r} cannot be used here: {reason}"
    stand_ins = [c for c in selection.candidates if c.fallback and c.name != name and not c.accepted]
    if stand_ins and not selection.strict:
        what += f" (nor its stand-in {stand_ins[0].name!r}: {stand_ins[0].reason})"
    return ReaderUnavailableError(
        what,
        name=name,
        reason=reason,
        code=asked.code if asked else None,
        fix=asked.fix if asked else None,
        distribution=asked.distribution if asked else None,
    )


def _none_fits(selection: Selection, failures: Failures) -> NoSuitableReaderError:
    wanted = selection.request.format
    if not selection.candidates:
        what = "no weight reader is installed" + (f", and format {wanted!r} is asked for" if wanted else "")
    else:
        reasons = "; ".join(f"{c.name}: {c.reason}" for c in selection.candidates)
        what = f"no installed weight reader fits{f' format {wanted!r}' if wanted else ''} ({reasons})"
    error = NoSuitableReaderError(what, selection=selection, fix=_fix(selection.candidates, selection.request))
    error.__cause__ = next(iter(failures.values()), None)
    return error


def _fix(candidates: tuple[Candidate, ...], request: Request) -> str | None:
    """Install a reader of ours where no installed one reads such files; else the first mend that a candidate names."""
    first = next((c.fix for c in candidates if c.fix), None)
    if all(c.code in ("format", "scheme") for c in candidates):
        more = _catalogue.suggestion(request.format, request.schemes, installed=[c.name for c in candidates])
        return more or first
    return first
