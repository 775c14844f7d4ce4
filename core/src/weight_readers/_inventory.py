# SPDX-License-Identifier: Apache-2.0
"""One generation of what is installed: the plugins, loaded when asked for, and the judgement of each.

No lock is held while a plugin is imported: a plugin whose import asks the registry would deadlock against a
second thread. Threads may load one plugin twice; the first to publish wins, and all then hold the same record.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Collection, Mapping

from weight_readers import _catalogue, _plugin_loading
from weight_readers._entry_points import Scan, Source
from weight_readers._plugins import Broken, Plugin
from weight_readers._settings import DISABLE, Settings
from weight_readers.capabilities import Request
from weight_readers.environment import Environment
from weight_readers.errors import (
    DuplicateReaderError,
    ReaderUnavailableError,
    UnknownReaderError,
)
from weight_readers.format_table import FormatTable
from weight_readers.policy import Rejected, Verdict, decide
from weight_readers.selection import Standing
from weight_readers.spelling import closest


class Inventory:
    """Names, who claims them, and the plugin behind each. Replaced as a whole by `Registry.refresh`."""

    def __init__(self, scan: Scan, settings: Settings, explicit: Mapping[str, object]) -> None:
        self.scan = scan
        self.settings = settings
        self._sources = {name: list(found) for name, found in scan.sources.items()}
        for name, plugin in explicit.items():
            self._sources.setdefault(name, []).append(Source(name=name, load=lambda plugin=plugin: plugin))  # type: ignore[misc]
        self._plugins: dict[str, Plugin | Broken] = {}
        self._formats: FormatTable | None = None
        self._modules: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._loading = threading.local()

    def names(self) -> list[str]:
        """Every name that somebody claims, sorted."""
        return sorted(self._sources)

    def known_names(self) -> set[str]:
        """Names that may be asked for: the installed ones, and those that this project publishes."""
        return {*self._sources, *_catalogue.KNOWN_READERS}

    def duplicates(self) -> dict[str, list[str]]:
        """Name -> all who claim it, where that is more than one."""
        return {name: [str(s) for s in found] for name, found in sorted(self._sources.items()) if len(found) > 1}

    def sources(self, name: str) -> list[Source]:
        return self._sources.get(name, [])

    def is_disabled(self, name: str) -> bool:
        return name in self.settings.disable

    # --- names that a caller gives ------------------------------------------------------------------------

    def check_known(self, name: str) -> None:
        """Raise UnknownReaderError for a name that nobody has, DuplicateReaderError for one that two have."""
        if len(self.sources(name)) > 1:
            raise _duplicate(name, self.sources(name))
        if name not in self.known_names():
            available = self.available()
            raise UnknownReaderError(name, available=available, fix=self._meant(name, available))

    def _meant(self, name: str, available: Collection[str]) -> str | None:
        """The close match (the reader, for the name of an extra) and how to install it, or any where there is none."""
        of_extra = {known.extra: reader for reader, known in _catalogue.KNOWN_READERS.items()}
        meant = closest(of_extra.get(name, name), self.known_names())
        if meant is None:
            return None if available else _catalogue.suggestion(None)
        hint = None if self.sources(meant) else _catalogue.install_hint(meant)
        return " ".join(filter(None, [f"Did you mean {meant!r}?", hint]))

    # --- plugins ------------------------------------------------------------------------------------------

    def plugins(self) -> list[Plugin | Broken]:
        """Every plugin that one source alone claims and nobody disabled, usable or broken, sorted by name."""
        loaded = (self.plugin(name) for name in self.names() if not self.is_disabled(name))
        return [plugin for plugin in loaded if plugin is not None]

    def plugin(self, name: str) -> Plugin | Broken | None:
        """The record of ``name``, loaded if need be; None where not exactly one source claims it, or it is
        being imported by this very thread."""
        if (known := self._plugins.get(name)) is not None:
            return known
        if len(self.sources(name)) != 1:
            return None
        plugin = self._load(self.sources(name)[0])
        if plugin is None:
            return None
        with self._lock:
            return self._plugins.setdefault(name, plugin)

    def _load(self, source: Source) -> Plugin | Broken | None:
        """Load without any lock. None for a plugin whose import led here: it is not there yet.

        Nor is a failure believed while this thread imports another plugin: it may come from what is half there.
        """
        under_way: set[str] = self._loading.__dict__.setdefault("names", set())
        if source.name in under_way:
            return None
        under_way.add(source.name)
        try:
            plugin = _plugin_loading.load(source)
        except _plugin_loading.StillImporting:
            return None
        finally:
            under_way.discard(source.name)
        return None if isinstance(plugin, Broken) and under_way else plugin

    def usable(self, name: str) -> Plugin:
        """The plugin of ``name``. Raises ReaderUnavailableError where it is absent, disabled or broken."""
        plugin = None if self.is_disabled(name) else self.plugin(name)
        if isinstance(plugin, Plugin):
            return plugin
        if isinstance(plugin, Broken):
            raise plugin.failure()
        rejected = self._without_plugin(name)
        raise ReaderUnavailableError(
            f"reader {name!r} cannot be used: {rejected.reason}",
            name=name,
            reason=rejected.reason,
            code=rejected.code,
            fix=rejected.fix,
        )

    # --- formats ------------------------------------------------------------------------------------------

    def file_formats(self) -> FormatTable:
        """What all plugins that can be loaded declare, disabled ones excepted."""
        if self._formats is not None:
            return self._formats
        names = [name for name in self.names() if len(self.sources(name)) == 1 and not self.is_disabled(name)]
        loaded = [self.plugin(name) for name in names]
        table = FormatTable(claim for each in loaded if isinstance(each, Plugin) for claim in each.claims())
        if None not in loaded:  # a plugin that is being imported right now is asked again
            self._formats = table
        return table

    # --- judgement ----------------------------------------------------------------------------------------

    def available(self, environment: Environment | None = None) -> list[str]:
        """Names of the readers that are usable here, whatever is asked of them, sorted."""
        standings = self.standings(Request(), environment or Environment())
        return [s.name for s in standings if not isinstance(s.verdict, Rejected)]

    def standings(self, request: Request, environment: Environment) -> list[Standing]:
        """How every claimed name stands with ``request``, sorted by name."""
        return [self.standing(name, request, environment) for name in self.names()]

    def standing(self, name: str, request: Request, environment: Environment) -> Standing:
        plugin = None if self.is_disabled(name) else self.plugin(name)
        if plugin is None:
            return Standing(name=name, verdict=self._without_plugin(name, request))
        if isinstance(plugin, Broken):
            verdict: Verdict = Rejected(code="broken", reason=plugin.error.reason, fix=plugin.error.fix)
        else:
            verdict = self._verdict(plugin, request, environment)
        return Standing(
            name=name,
            verdict=verdict,
            info=plugin.info if isinstance(plugin, Plugin) else None,
            distribution=plugin.source.distribution,
            version=plugin.source.version,
        )

    def _without_plugin(self, name: str, request: Request | None = None) -> Rejected:
        if self.is_disabled(name):
            return Rejected(code="disabled", reason=f"disabled by {DISABLE}", fix=f"Take it out of {DISABLE}")
        claims = self.sources(name)
        if len(claims) > 1:
            error = _duplicate(name, claims)
            return Rejected(code="duplicate", reason=error.what, fix=error.fix)
        if claims:
            return Rejected(code="importing", reason="its plugin is still being imported")
        request = request or Request()
        known = _catalogue.KNOWN_READERS.get(name)
        if known is not None and request.format is not None and request.format not in known.formats:
            reads = ", ".join(sorted(known.formats))
            return Rejected(
                code="absent", reason=f"its plugin is not installed, and reads {reads}, not {request.format}"
            )
        fix = _catalogue.install_hint(name, request.schemes)
        return Rejected(code="absent", reason="its plugin is not installed", fix=fix)

    def _verdict(self, plugin: Plugin, request: Request, environment: Environment) -> Verdict:
        verdict = decide(plugin.info, request, environment)
        if isinstance(verdict, Rejected) and verdict.code == "format":
            return verdict  # its backend would be of no use
        if missing := plugin.missing_backend(environment.has_module or self._has_module):
            return missing
        if isinstance(verdict, Rejected):
            return verdict
        return plugin.veto(request, environment) or verdict

    def _has_module(self, name: str) -> bool:
        if name not in self._modules:
            self._modules[name] = _find_module(name)
        return self._modules[name]


def _find_module(name: str) -> bool:
    top = name.partition(".")[0]  # looking for a submodule would import its parent: the backend
    if sys.modules.get(top) is not None:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except Exception:  # whatever a finder on sys.meta_path makes of a plugin's odd name
        return False


def _duplicate(name: str, sources: Collection[Source]) -> DuplicateReaderError:
    """Names the claimant to remove: a stranger rather than ours, where the name is one of ours."""
    ours = {d for dists in _catalogue.core_extras().values() for d in dists}
    removable = [s.distribution for s in sources if s.distribution is not None]
    strangers = [d for d in removable if _catalogue.normalized(d) not in ours]
    fix = f"Uninstall all but one of them: pip uninstall {(strangers or removable)[-1]}"
    return DuplicateReaderError(name, distributions=[str(source) for source in sources], fix=fix)
