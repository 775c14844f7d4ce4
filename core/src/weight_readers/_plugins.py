# SPDX-License-Identifier: Apache-2.0
"""Load one plugin into a record: usable, or unusable with the cause. Nothing a plugin does is fatal for others.

Each plugin gets a pluggy manager of its own. A hook call then reaches exactly its owner, and a misspelt hook is
found with ``check_pending()`` without blaming the neighbours.
"""

from __future__ import annotations

import copy
import importlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from weight_readers import hookspecs
from weight_readers._entry_points import Source
from weight_readers.capabilities import (
    API_VERSION,
    Declined,
    Environment,
    Feature,
    QuantMethodInfo,
    ReaderInfo,
    Request,
)
from weight_readers.errors import (
    PluginContractError,
    PluginLoadError,
    PluginVersionError,
    ReaderUnavailableError,
    WeightReadersError,
)
from weight_readers.policy import Rejected
from weight_readers.reader import ReadsInto, WeightReader

_Failure = (Exception, SystemExit)
"""What plugin code may raise without ending the process: some modules exit when a licence or a device is absent."""

_READER_MEMBERS = ("info", "selection", "read_meta", "iter_weights")


class StillImporting(Exception):
    """The plugin's module is only half imported: the call came from inside its import. Never leaves the registry."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A plugin that could not be loaded, and why."""

    source: Source
    error: ReaderUnavailableError

    @property
    def trace(self) -> str:
        """The traceback of what broke it, as text."""
        cause = self.error.__cause__ or self.error
        return "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))

    def failure(self) -> ReaderUnavailableError:
        """A fresh copy of the error: one exception raised again and again gathers tracebacks and their frames."""
        fresh = copy.copy(self.error)
        fresh.__cause__ = self.error.__cause__
        return fresh


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A plugin that loaded and described itself."""

    source: Source
    info: ReaderInfo
    hooks: Any
    quant_methods: tuple[QuantMethodInfo, ...] = ()

    def missing_backend(self, has_module: Callable[[str], bool]) -> Rejected | None:
        """A rejection naming the first backend module that is not installed."""
        for requirement in self.info.requires:
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
        except _Failure as error:
            return Rejected(code="check-failed", reason=f"its check raised {_said(error)}")
        if declined is None:
            return None
        if not isinstance(declined, Declined):
            return Rejected(code="check-failed", reason=f"its check returned {declined!r}, not Declined or None")
        return Rejected(code="vetoed", reason=declined.reason, fix=declined.fix)

    def create(self, settings: Mapping[str, Any], options: Mapping[str, Any]) -> WeightReader:
        """Make the reader with what policy set and the caller's options.

        Raises PluginLoadError or PluginContractError. A ValueError or TypeError goes through where the caller gave
        options: it is about them. Where none were given it is the backend's (a numpy of another ABI raises one).
        """
        try:
            reader = self.hooks.weight_readers_create(options={**settings, **options})
        except WeightReadersError:
            raise
        except _Failure as error:
            if options and isinstance(error, (ValueError, TypeError)):
                raise
            raise failure(PluginLoadError, f"its backend raised {_said(error)}", self.source) from error
        if breach := _breach(reader, self.info.name):
            raise failure(PluginContractError, f"its create hook returned {breach}", self.source)
        return reader  # type: ignore[no-any-return]


def failure(
    kind: type[ReaderUnavailableError], what: str, source: Source, *, fix: str | None = None
) -> ReaderUnavailableError:
    """An error about one plugin, naming its distribution, and the command that mends most of its kind."""
    owner = f" of {source.origin}" if source.distribution else ""
    if fix is None and source.distribution is not None:
        reinstall = "--force-reinstall" if issubclass(kind, PluginLoadError) else "--upgrade"
        fix = f"Mend or remove it: pip install {reinstall} {source.distribution}"
    return kind(
        f"reader {source.name!r}{owner} is broken: {what}",
        name=source.name,
        reason=what,
        fix=fix,
        code="broken",
        distribution=source.distribution,
    )


def load(source: Source) -> Plugin | Broken:
    """Import, register and question one plugin. Raises only StillImporting (and what ends the process)."""
    try:
        plugin = _imported(source)
        hooks = _registered(plugin, source)
        info = _described(hooks, source)
        methods = _quant_methods(hooks, source)
    except ReaderUnavailableError as error:
        return Broken(source=source, error=error)
    return Plugin(source=source, info=info, hooks=hooks, quant_methods=methods)


# --- import ------------------------------------------------------------------------------------------------


def _imported(source: Source) -> object:
    try:
        if source.module is not None and _is_half_imported(source.module):
            raise StillImporting(source.name)
        return source.load()
    except StillImporting:
        raise
    except _Failure as error:
        if _is_deadlock(error):
            raise StillImporting(source.name) from error
        fix = _UPGRADE_CORE if _wants_newer_core(error) else None
        raise failure(PluginLoadError, _import_story(error, source.module), source, fix=fix) from error


def _is_half_imported(module: str) -> bool:
    imported = importlib.import_module(module)
    return bool(getattr(getattr(imported, "__spec__", None), "_initializing", False))


def _is_deadlock(error: BaseException) -> bool:
    """Two threads import plugins that ask for each other: Python breaks the tie with an error in one of them."""
    return type(error).__name__ == "_DeadlockError"


_UPGRADE_CORE = "Upgrade core: pip install --upgrade weight-readers"


def _wants_newer_core(error: BaseException) -> bool:
    """The plugin imports a name that this core does not have yet."""
    return isinstance(error, ImportError) and str(error.name).partition(".")[0] == hookspecs.PROJECT_NAME


def _import_story(error: BaseException, module: str | None) -> str:
    """Tell "the plugin is missing" from "the plugin misses something" (NVIDIA/Megatron-LM#692)."""
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is None:
        return f"importing it raised {_said(error)}"
    own = module is not None and (module == absent or module.startswith(f"{absent}."))
    return f"its own module {absent!r} is not there" if own else f"it imports {absent!r}, which is not installed"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# --- contract ----------------------------------------------------------------------------------------------


def _registered(plugin: object, source: Source) -> Any:
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, name=source.name)
        manager.check_pending()
    except Exception as error:
        raise failure(PluginContractError, _said(error), source) from error
    for hook, caller in vars(manager.hook).items():
        if caller.get_hookimpls():
            continue
        if hasattr(plugin, hook):  # a veto that nobody calls would be worse than none
            raise failure(PluginContractError, f"its {hook} lacks @weight_readers.hookimpl", source)
        if hook in ("weight_readers_describe", "weight_readers_create"):
            raise failure(PluginContractError, f"it has no {hook}", source)
    return manager.hook


def _described(hooks: Any, source: Source) -> ReaderInfo:
    try:
        info = hooks.weight_readers_describe()
    except _Failure as error:
        raise failure(PluginContractError, f"its describe hook raised {_said(error)}", source) from error
    if not isinstance(info, ReaderInfo):
        raise failure(PluginContractError, f"its describe hook returned {info!r}, not a ReaderInfo", source)
    if info.api_version > API_VERSION:
        what = f"it was written for API version {info.api_version}, and this core speaks {API_VERSION}"
        raise failure(PluginVersionError, what, source, fix=_UPGRADE_CORE)
    if info.name != source.name:
        raise failure(PluginContractError, f"it describes itself as {info.name!r}", source)
    return info


def _quant_methods(hooks: Any, source: Source) -> tuple[QuantMethodInfo, ...]:
    try:
        methods: Sequence[object] = tuple(hooks.weight_readers_quant_methods() or ())
    except _Failure as error:
        raise failure(PluginContractError, f"its quant-method hook raised {_said(error)}", source) from error
    listed: list[QuantMethodInfo] = []
    for method in methods:
        if not isinstance(method, QuantMethodInfo):
            raise failure(PluginContractError, f"its quant-method hook listed {method!r}", source)
        listed.append(method)
    return tuple(listed)


def _breach(reader: object, name: str) -> str | None:
    """How ``reader`` breaks its protocol; None where it keeps it."""
    kind = type(reader).__name__
    if missing := [member for member in _READER_MEMBERS if not hasattr(reader, member)]:
        return f"{kind}, which lacks {', '.join(missing)}"
    info = getattr(reader, "info", None)
    if not isinstance(info, ReaderInfo) or info.name != name:
        return f"{kind}, described as {info!r}"
    if Feature.READ_INTO in info.features and not isinstance(reader, ReadsInto):
        return f"{kind}, which declares read_into and lacks it"
    return None
