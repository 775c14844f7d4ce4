# SPDX-License-Identifier: Apache-2.0
"""Load one plugin into a record: usable, or unusable with the cause. Nothing a plugin does is fatal for others.

Each plugin gets a pluggy manager of its own. A hook call then reaches exactly its owner, and a misspelt hook is
found with ``check_pending()`` without blaming the neighbours.
"""

from __future__ import annotations

import copy
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pluggy

from weight_readers import _catalogue, hookspecs
from weight_readers._entry_points import Source
from weight_readers._text import NOT_CONTAINED, kind_of, rendered, said, shown
from weight_readers.capabilities import (
    API_VERSION,
    Declined,
    Feature,
    QuantMethodInfo,
    ReaderInfo,
    Request,
)
from weight_readers.environment import Environment
from weight_readers.errors import (
    PluginContractError,
    PluginLoadError,
    PluginVersionError,
    ReaderUnavailableError,
    WeightReadersError,
)
from weight_readers.format_table import Claim
from weight_readers.policy import Rejected
from weight_readers.reader import ReadsInto, WeightReader

_READER_MEMBERS = ("info", "selection", "read_meta", "iter_weights")

_LONGEST_TRACE = 20_000


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
        return rendered(_trace_of, cause, otherwise=said(cause), longest=_LONGEST_TRACE)

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

    def claims(self) -> list[Claim]:
        """The formats that it declares."""
        return [Claim(format=f, reader=self.info.name, origin=self.source.origin) for f in self.info.file_formats]

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
        except NOT_CONTAINED:
            raise
        except BaseException as error:
            return Rejected(code="check-failed", reason=f"its check raised {said(error)}")
        if declined is None:
            return None
        if not _is_a(declined, Declined):
            return Rejected(code="check-failed", reason=f"its check returned {shown(declined)}, not Declined or None")
        return Rejected(code="vetoed", reason=declined.reason, fix=declined.fix)

    def create(self, options: Mapping[str, Any], *, of_caller: bool) -> WeightReader:
        """Make the reader with these options; ``of_caller`` says that at least one is the caller's.

        Raises PluginLoadError or PluginContractError. A ValueError or TypeError goes through where the caller gave
        options: it is about them. Where none were given it is the backend's (a numpy of another ABI raises one).
        """
        try:
            reader = self.hooks.weight_readers_create(options=dict(options))
        except (WeightReadersError, *NOT_CONTAINED):
            raise
        except BaseException as error:
            if of_caller and isinstance(error, (ValueError, TypeError)):
                raise
            raise failure(PluginLoadError, f"its backend raised {said(error)}", self.source) from error
        with blamed(PluginContractError, "looking at its reader raised", self.source):
            breach = _breach(reader, self.info.name)
        if breach is not None:
            raise failure(PluginContractError, f"its create hook returned {breach}", self.source)
        return reader  # type: ignore[no-any-return]


def failure(
    kind: type[ReaderUnavailableError], what: str, source: Source, *, fix: str | None = None
) -> ReaderUnavailableError:
    """An error about one plugin, naming its distribution, and the command that mends most of its kind."""
    owner = f" of {source.origin}" if source.distribution else ""
    if fix is None and source.distribution is not None:
        fix = _mend(kind, source.distribution)
    return kind(
        f"reader {source.name!r}{owner} is broken: {what}",
        name=source.name,
        reason=what,
        fix=fix,
        code="broken",
        distribution=source.distribution,
    )


def _mend(kind: type[ReaderUnavailableError], distribution: str) -> str:
    """The command for a user of the plugin; its author, who has it installed from a folder, mends the folder."""
    if (folder := _catalogue.installed_from(distribution)) is not None:
        return f"Mend it in {folder}, from which it was installed, or remove it: pip uninstall {distribution}"
    reinstall = "--force-reinstall" if issubclass(kind, PluginLoadError) else "--upgrade"
    return f"Mend or remove it: pip install {reinstall} {distribution}"


@contextmanager
def blamed(kind: type[ReaderUnavailableError], what: str, source: Source) -> Iterator[None]:
    """Whatever is raised inside is an error of that ``kind`` about one plugin; ``what`` is said before the cause."""
    try:
        yield
    except NOT_CONTAINED:
        raise
    except BaseException as error:
        raise failure(kind, f"{what} {said(error)}", source) from error


def _is_a(answer: object, kind: type) -> bool:
    """isinstance() by the real class: it would ask the answer's ``__class__``, which may raise, or lie as mocks do."""
    return issubclass(type(answer), kind)


def _trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


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
    except (StillImporting, *NOT_CONTAINED):
        raise
    except BaseException as error:
        if _is_deadlock(error):
            raise StillImporting(source.name) from error
        fix = _UPGRADE_CORE if _wants_newer_core(error) else None
        raise failure(PluginLoadError, _import_story(error, source.module), source, fix=fix) from error


def _is_half_imported(module: str) -> bool:
    imported = importlib.import_module(module)
    return bool(getattr(getattr(imported, "__spec__", None), "_initializing", False))


def _is_deadlock(error: BaseException) -> bool:
    """Two threads import plugins that ask for each other: Python breaks the tie with an error in one of them."""
    return kind_of(error) == "_DeadlockError"


_UPGRADE_CORE = "Upgrade core: pip install --upgrade weight-readers"


def _wants_newer_core(error: BaseException) -> bool:
    """The plugin imports a name that this core does not have yet."""
    return (_module_named_by(error) or "").partition(".")[0] == hookspecs.PROJECT_NAME


def _module_named_by(error: BaseException) -> str | None:
    """The ``name`` of an ImportError, where it is text: whoever raises one by hand may give it anything."""
    try:
        name = error.name if isinstance(error, ImportError) else None
    except NOT_CONTAINED:
        raise
    except BaseException:
        return None
    return name if type(name) is str else None


def _import_story(error: BaseException, module: str | None) -> str:
    """Tell "the plugin is missing" from "the plugin misses something" (NVIDIA/Megatron-LM#692)."""
    absent = _module_named_by(error) if isinstance(error, ModuleNotFoundError) else None
    if absent is None:
        return f"importing it raised {said(error)}"
    own = module is not None and (module == absent or module.startswith(f"{absent}."))
    return f"its own module {absent!r} is not there" if own else f"it imports {absent!r}, which is not installed"


# --- contract ----------------------------------------------------------------------------------------------


def _registered(plugin: object, source: Source) -> Any:
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    with blamed(PluginContractError, "registering it raised", source):
        manager.register(plugin, name=source.name)
        manager.check_pending()
        lacking = _lacking_hook(manager, plugin)
    if lacking is not None:
        raise failure(PluginContractError, lacking, source)
    return manager.hook


def _lacking_hook(manager: pluggy.PluginManager, plugin: object) -> str | None:
    for hook, caller in vars(manager.hook).items():
        if caller.get_hookimpls():
            continue
        if hasattr(plugin, hook):  # a veto that nobody calls would be worse than none
            return f"its {hook} lacks @weight_readers.hookimpl"
        if hook in ("weight_readers_describe", "weight_readers_create"):
            return f"it has no {hook}"
    return None


def _described(hooks: Any, source: Source) -> ReaderInfo:
    with blamed(PluginContractError, "its describe hook raised", source):
        info: ReaderInfo = hooks.weight_readers_describe()
    if not _is_a(info, ReaderInfo):
        raise failure(PluginContractError, f"its describe hook returned {shown(info)}, not a ReaderInfo", source)
    if info.api_version > API_VERSION:
        what = f"it was written for API version {info.api_version}, and this core speaks {API_VERSION}"
        raise failure(PluginVersionError, what, source, fix=_UPGRADE_CORE)
    if info.name != source.name:
        raise failure(PluginContractError, f"it describes itself as {shown(info.name)}", source)
    return info


def _quant_methods(hooks: Any, source: Source) -> tuple[QuantMethodInfo, ...]:
    with blamed(PluginContractError, "its quant-method hook raised", source):
        methods: Sequence[QuantMethodInfo] = tuple(hooks.weight_readers_quant_methods() or ())
    for method in methods:
        if not _is_a(method, QuantMethodInfo):
            raise failure(PluginContractError, f"its quant-method hook listed {shown(method)}", source)
    return tuple(methods)


def _breach(reader: object, name: str) -> str | None:
    """How ``reader`` breaks its protocol; None where it keeps it."""
    kind = kind_of(reader)
    if missing := [member for member in _READER_MEMBERS if not hasattr(reader, member)]:
        return f"{kind}, which lacks {', '.join(missing)}"
    info = getattr(reader, "info", None)
    if not isinstance(info, ReaderInfo) or info.name != name:
        return f"{kind}, described as {shown(info)}"
    if Feature.READ_INTO in info.features and not isinstance(reader, ReadsInto):
        return f"{kind}, which declares read_into and lacks it"
    return None
