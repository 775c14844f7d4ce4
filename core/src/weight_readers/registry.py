# SPDX-License-Identifier: Apache-2.0
"""The registry: binds entry points to the schema, and answers who is there and who fits.

Nothing is scanned at import. The first question scans, and the answer is kept until `refresh`. No lock is held
while a plugin is imported: a plugin whose import asks the registry would deadlock against a second thread.
Threads may load one plugin twice; the first to publish wins, and all of them then hold the same record.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import importlib_metadata

from weight_readers import _catalogue, _plugins
from weight_readers._entry_points import Found, Scan, scan
from weight_readers._plugins import Plugin
from weight_readers._settings import Settings, close_match
from weight_readers.capabilities import API_VERSION, Environment, ReaderInfo, Request
from weight_readers.errors import DuplicateReaderError, ReaderUnavailableError, UnknownReaderError
from weight_readers.policy import Rejected, Verdict, decide
from weight_readers.selection import Selection, Standing, choose


@dataclass
class _State:
    """One generation of knowledge: replaced as a whole by `refresh`, so that calls under way keep theirs."""

    scan: Scan
    settings: Settings
    plugins: dict[str, Plugin] = field(default_factory=dict)
    modules: dict[str, bool] = field(default_factory=dict)


class Registry:
    """What is installed, as one instance. The functions of `weight_readers` use a shared default one.

    Make your own for tests, frozen applications or embedding: ``plugins`` maps names to plugin modules or
    objects and comes on top of what ``distributions`` declare (default: everything installed; pass ``()`` for
    none). ``environment`` holds facts about the machine that every request is judged with unless it brings its
    own, ``environ`` the process environment that settings are read from.
    """

    def __init__(
        self,
        *,
        plugins: Mapping[str, object] | None = None,
        distributions: Iterable[importlib_metadata.Distribution] | None = None,
        environment: Environment | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._explicit = dict(plugins or {})
        self._distributions = None if distributions is None else tuple(distributions)
        self._environment = environment or Environment()
        self._environ = os.environ if environ is None else environ
        self._lock = threading.Lock()
        self._state: _State | None = None
        self._loading = threading.local()

    # --- who is there -------------------------------------------------------------------------------------

    def available_reader_names(self) -> list[str]:
        """Names of the readers that are installed and usable here, sorted. Imports no backend."""
        return sorted(s.name for s in self._standings() if not isinstance(s.verdict, Rejected))

    def describe_reader(self, name: str) -> ReaderInfo:
        """What reader ``name`` declares.

        Raises UnknownReaderError, DuplicateReaderError, or ReaderUnavailableError where it is ours but not
        installed, or installed and broken.
        """
        self._must_be_known(name)
        plugin = self._plugin(name)
        if plugin is None:
            raise ReaderUnavailableError(
                f"reader {name!r} is not installed", name=name, code="absent", fix=_catalogue.install_hint(name)
            )
        if plugin.error is not None:
            raise plugin.error
        assert plugin.info is not None  # noqa: S101 - a plugin without an error has described itself
        return plugin.info

    def plugins(self) -> list[Plugin]:
        """A record of every plugin that one distribution alone claims, usable or broken, sorted by name."""
        loaded = (self._plugin(name) for name in self._names())
        return [plugin for plugin in loaded if plugin is not None]

    def refresh(self) -> None:
        """Forget everything and scan again at the next question. Modules that are imported already stay so."""
        importlib.invalidate_caches()
        with self._lock:
            self._state = None

    # --- who fits -----------------------------------------------------------------------------------------

    def explain(
        self,
        request: Request,
        *,
        requested: str | None = None,
        strict: bool | None = None,
        environment: Environment | None = None,
    ) -> Selection:
        """Judge every reader. Raises UnknownReaderError or DuplicateReaderError for ``requested`` only."""
        if requested is not None:
            self._must_be_known(requested)
        settings = self._current().settings
        facts = environment or self._environment
        standings = self._standings(request, facts)
        if requested is not None and not any(s.name == requested for s in standings):
            standings.append(_absent(requested))
        return choose(
            standings,
            request,
            facts,
            requested=requested,
            environment_prefers=settings.prefer,
            strict=settings.strict if strict is None else strict,
        )

    def publish(self, plugin: Plugin) -> None:
        """Replace what is known of a plugin (it turned out broken, or its capabilities were probed)."""
        state = self._current()
        with self._lock:
            state.plugins[plugin.name] = plugin

    def plugin(self, name: str) -> Plugin | None:
        """The record of ``name``; None where nobody or more than one distribution claims it."""
        return self._plugin(name)

    # --- everything, for people ---------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Everything known: readers, broken, disabled, duplicates, shadowed copies, extras not installed."""
        state = self._current()
        standings = {s.name: s for s in self._standings()}
        plugins = {p.name: p for p in self.plugins()}
        unusable = {n: s.verdict for n, s in standings.items() if isinstance(s.verdict, Rejected)}
        return {
            "schema": 1,
            "api_version": API_VERSION,
            "core_version": _catalogue.core_version(),
            "python": platform.python_version(),
            "available": sorted(set(standings) - set(unusable)),
            "readers": {n: p.info.to_json() | _origin(p) for n, p in plugins.items() if p.info is not None},
            "broken": {
                n: {"cause": str(p.error), "traceback": p.trace} | _origin(p)
                for n, p in plugins.items()
                if p.error is not None
            },
            "unusable": {n: v.to_json() for n, v in unusable.items() if v.code not in ("broken", "disabled")},
            "disabled": sorted(n for n, v in unusable.items() if v.code == "disabled"),
            "duplicates": {n: [str(f) for f in found] for n, found in state.scan.found.items() if len(found) > 1},
            "shadowed": [str(found) for found in state.scan.shadowed],
            "unreadable": [{"location": where, "cause": why} for where, why in state.scan.unreadable],
            "missing_extras": _missing_extras(),
        }

    # --- how it is known ----------------------------------------------------------------------------------

    def _current(self) -> _State:
        state = self._state
        if state is not None:
            return state
        installed: Iterable[Any] = (
            importlib_metadata.distributions() if self._distributions is None else self._distributions
        )
        fresh = _State(scan=scan(installed), settings=Settings.of(self._environ))
        with self._lock:
            if self._state is None:
                self._state = fresh
                first = True
            else:
                first = False
            state = self._state
        if first:
            state.settings.warn_of_unknown({*self._names(state), *_catalogue.KNOWN_READERS})
        return state

    def _names(self, state: _State | None = None) -> list[str]:
        state = state or self._current()
        return sorted({*state.scan.found, *self._explicit})

    def _claims(self, name: str) -> tuple[Found, ...]:
        return self._current().scan.found.get(name, ())

    def _must_be_known(self, name: str) -> None:
        claims = self._claims(name)
        explicit = name in self._explicit
        if len(claims) + explicit > 1:
            owners = [str(found) for found in claims] + (["an explicit plugin"] if explicit else [])
            raise DuplicateReaderError(name, distributions=owners)
        if claims or explicit or name in _catalogue.KNOWN_READERS:
            return
        available = self.available_reader_names()
        match = close_match(name, {*available, *_catalogue.KNOWN_READERS})
        raise UnknownReaderError(
            name,
            available=available,
            fix=match or (None if available else _catalogue.format_hint(None)),
        )

    def _plugin(self, name: str) -> Plugin | None:
        state = self._current()
        known = state.plugins.get(name)
        if known is not None:
            return known
        claims = self._claims(name)
        if len(claims) + (name in self._explicit) != 1:
            return None
        try:
            plugin = self._load(name, claims[0] if claims else None)
        except _plugins.StillImporting:
            return None
        if plugin is None:
            return None
        with self._lock:
            return state.plugins.setdefault(name, plugin)

    def _load(self, name: str, found: Found | None) -> Plugin | None:
        """Load without any lock. A plugin whose import asks for itself is not there yet: None."""
        under_way: set[str] = self._loading.__dict__.setdefault("names", set())
        if name in under_way:
            return None
        under_way.add(name)
        try:
            if found is None:
                return _plugins.load(name, lambda: self._explicit[name], distribution=None, version=None)
            return _plugins.load(
                name,
                found.entry_point.load,
                distribution=found.distribution,
                version=found.version,
                module=found.entry_point.value.partition(":")[0].strip(),
            )
        finally:
            under_way.discard(name)

    def _standings(self, request: Request | None = None, environment: Environment | None = None) -> list[Standing]:
        return [self._standing(name, request or Request(), environment or self._environment) for name in self._names()]

    def _standing(self, name: str, request: Request, environment: Environment) -> Standing:
        claims = self._claims(name)
        if len(claims) + (name in self._explicit) > 1:
            owners = " and ".join(str(found) for found in claims)
            return Standing(
                name=name, verdict=Rejected(code="duplicate", reason=f"registered more than once: {owners}")
            )
        plugin = self._plugin(name)
        if plugin is None:
            return Standing(name=name, verdict=Rejected(code="importing", reason="its plugin is still being imported"))
        return Standing(
            name=name,
            verdict=self._verdict(plugin, request, environment),
            info=plugin.info,
            distribution=plugin.distribution,
            version=plugin.version,
        )

    def _verdict(self, plugin: Plugin, request: Request, environment: Environment) -> Verdict:
        if plugin.name in self._current().settings.disable:
            return Rejected(code="disabled", reason="disabled by WEIGHT_READERS_DISABLE", fix="Unset that variable")
        if plugin.error is not None or plugin.info is None:
            error = plugin.error
            return Rejected(code="broken", reason=error.what if error else "broken", fix=error.fix if error else None)
        return (
            plugin.missing_backend(environment.has_module or self._has_module)
            or _if_rejected(decide(plugin.info, request, environment))
            or plugin.veto(request, environment)
            or decide(plugin.info, request, environment)
        )

    def _has_module(self, name: str) -> bool:
        modules = self._current().modules
        if name not in modules:
            modules[name] = _find_module(name)
        return modules[name]


def _find_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent that is missing, or a module without a spec
        return False


def _if_rejected(verdict: Verdict) -> Rejected | None:
    return verdict if isinstance(verdict, Rejected) else None


def _absent(name: str) -> Standing:
    rejected = Rejected(code="absent", reason="its plugin is not installed", fix=_catalogue.install_hint(name))
    return Standing(name=name, verdict=rejected)


def _origin(plugin: Plugin) -> dict[str, Any]:
    return {"distribution": plugin.distribution, "version": plugin.version}


def _missing_extras() -> dict[str, dict[str, Any]]:
    missing: dict[str, dict[str, Any]] = {}
    for extra, distributions in _catalogue.core_extras().items():
        absent = [name for name in distributions if not _installed(name)]
        if absent:
            missing[extra] = {"distributions": absent, "install": _catalogue.install_command(extra)}
    return missing


def _installed(distribution: str) -> bool:
    try:
        importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return False
    return True
