# SPDX-License-Identifier: Apache-2.0
"""Load one plugin into a record: usable, or unusable with the cause. Nothing a plugin does is fatal for others.

Each plugin gets a pluggy manager of its own. A hook call then reaches exactly its owner, and a misspelt hook is
found with ``check_pending()`` without blaming the neighbours.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pluggy

from weight_readers import hookspecs
from weight_readers.capabilities import API_VERSION, Declined, Environment, QuantMethodInfo, ReaderInfo, Request
from weight_readers.errors import (
    PluginContractError,
    PluginLoadError,
    PluginVersionError,
    ReaderUnavailableError,
    WeightReadersError,
)
from weight_readers.policy import Rejected
from weight_readers.reader import WeightReader


class StillImporting(Exception):
    """The plugin's module is only half imported: the call came from inside its import. Never leaves the registry."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A plugin as far as it could be loaded: ``info`` where it described itself, ``error`` where it is broken."""

    name: str
    distribution: str | None
    version: str | None
    info: ReaderInfo | None = None
    hooks: Any = None
    error: ReaderUnavailableError | None = None
    trace: str | None = None
    quant_methods: tuple[QuantMethodInfo, ...] = ()

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version or ''}".strip() if self.distribution else "an explicit plugin"

    def missing_backend(self, has_module: Callable[[str], bool]) -> Rejected | None:
        """A rejection naming the first backend module that is not installed."""
        for requirement in self.info.requires if self.info else ():
            if not has_module(requirement.module):
                return Rejected(
                    code="backend-missing",
                    reason=f"needs the module {requirement.module!r}, which is not installed",
                    fix=f"Install it: pip install {requirement.distribution}",
                )
        return None

    def veto(self, request: Request, environment: Environment) -> Rejected | None:
        """The plugin's own check. A check that raises, or answers something else, counts as a veto that says so."""
        try:
            declined = self.hooks.weight_readers_check(request=request, environment=environment)
        except Exception as error:
            return Rejected(code="check-failed", reason=f"its check raised {type(error).__name__}: {error}")
        if declined is None:
            return None
        if not isinstance(declined, Declined):
            return Rejected(code="check-failed", reason=f"its check returned {declined!r}, not Declined or None")
        return Rejected(code="vetoed", reason=declined.reason, fix=declined.fix)

    def create(self, options: Mapping[str, Any]) -> WeightReader:
        """Make the reader. Raises PluginLoadError or PluginContractError; a bad option's ValueError goes through."""
        try:
            reader = self.hooks.weight_readers_create(options=dict(options))
        except (WeightReadersError, ValueError, TypeError):
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(PluginLoadError, f"its backend raised {_said(error)}") from error
        if not isinstance(reader, WeightReader):
            raise self._failure(PluginContractError, f"its create hook returned {type(reader).__name__}, no reader")
        if getattr(reader.info, "name", None) != self.name:
            raise self._failure(PluginContractError, f"its create hook returned a reader described as {reader.info!r}")
        return reader

    def _failure(self, kind: type[ReaderUnavailableError], what: str) -> ReaderUnavailableError:
        return failure(kind, what, name=self.name, distribution=self.distribution, version=self.version)


def failure(
    kind: type[ReaderUnavailableError],
    what: str,
    *,
    name: str,
    distribution: str | None,
    version: str | None,
    fix: str | None = None,
) -> ReaderUnavailableError:
    """An error about one plugin, naming its distribution, and the reinstall that mends most of them."""
    origin = f" of {distribution} {version or ''}".rstrip() if distribution else ""
    if fix is None and distribution is not None:
        fix = f"Reinstall or remove it: pip install --force-reinstall {distribution}"
    return kind(
        f"reader {name!r}{origin} is broken: {what}", name=name, fix=fix, code="broken", distribution=distribution
    )


def load(
    name: str, get: Callable[[], object], *, distribution: str | None, version: str | None, module: str | None = None
) -> Plugin:
    """Import, register and question one plugin. Raises only StillImporting (and what ends the process)."""
    whose: dict[str, Any] = {"name": name, "distribution": distribution, "version": version}
    try:
        plugin = _imported(get, whose, module)
        hooks = _registered(plugin, whose)
        info = _described(hooks, whose)
        methods = _quant_methods(hooks, whose)
    except ReaderUnavailableError as error:
        cause = error.__cause__ or error
        trace = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
        return Plugin(**whose, error=error, trace=trace)
    return Plugin(**whose, info=info, hooks=hooks, quant_methods=methods)


def _imported(get: Callable[[], object], whose: Mapping[str, Any], module: str | None) -> object:
    try:
        plugin = get()
    except (Exception, SystemExit) as error:
        raise failure(PluginLoadError, _import_story(error, module), **whose) from error
    if isinstance(plugin, ModuleType) and getattr(plugin.__spec__, "_initializing", False):
        raise StillImporting(whose["name"])
    return plugin


def _import_story(error: BaseException, module: str | None) -> str:
    """Tell "the plugin is missing" from "the plugin misses something" (NVIDIA/Megatron-LM#692)."""
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is None:
        return f"importing it raised {_said(error)}"
    own = module is not None and (module == absent or module.startswith(f"{absent}."))
    return f"its own module {absent!r} is not there" if own else f"it imports {absent!r}, which is not installed"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _registered(plugin: object, whose: Mapping[str, Any]) -> Any:
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, name=whose["name"])
        manager.check_pending()
    except Exception as error:
        raise failure(PluginContractError, _said(error), **whose) from error
    for hook in ("weight_readers_describe", "weight_readers_create"):
        if not getattr(manager.hook, hook).get_hookimpls():
            raise failure(PluginContractError, f"it has no @hookimpl {hook}", **whose)
    return manager.hook


def _described(hooks: Any, whose: Mapping[str, Any]) -> ReaderInfo:
    try:
        info = hooks.weight_readers_describe()
    except (Exception, SystemExit) as error:
        raise failure(PluginContractError, f"its describe hook raised {_said(error)}", **whose) from error
    if not isinstance(info, ReaderInfo):
        raise failure(PluginContractError, f"its describe hook returned {info!r}, not a ReaderInfo", **whose)
    if info.api_version > API_VERSION:
        what = f"it was written for API version {info.api_version}, and this core speaks {API_VERSION}"
        raise failure(PluginVersionError, what, fix="Upgrade core: pip install --upgrade weight-readers", **whose)
    if info.name != whose["name"]:
        raise failure(PluginContractError, f"it describes itself as {info.name!r}", **whose)
    return info


def _quant_methods(hooks: Any, whose: Mapping[str, Any]) -> tuple[QuantMethodInfo, ...]:
    try:
        methods: Sequence[object] = hooks.weight_readers_quant_methods() or ()
    except (Exception, SystemExit) as error:
        raise failure(PluginContractError, f"its quant-method hook raised {_said(error)}", **whose) from error
    listed: list[QuantMethodInfo] = []
    for method in methods:
        if not isinstance(method, QuantMethodInfo):
            raise failure(PluginContractError, f"its quant-method hook listed {method!r}", **whose)
        listed.append(method)
    return tuple(listed)
