# SPDX-License-Identifier: Apache-2.0
"""Load one plugin into a record: usable, or unusable with the cause. Nothing a plugin does is fatal for others.

Each plugin gets a pluggy manager of its own. A hook call then reaches exactly its owner, and a misspelt hook is
found with ``check_pending()`` without blaming the neighbours.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pluggy

from weight_readers import hookspecs
from weight_readers._blame import blamed, failure
from weight_readers._entry_points import Source
from weight_readers._plugins import Broken, Plugin, is_a
from weight_readers._text import NOT_CONTAINED, kind_of, said, shown
from weight_readers.capabilities import API_VERSION, QuantMethodInfo, ReaderInfo
from weight_readers.errors import PluginContractError, PluginLoadError, PluginVersionError, ReaderUnavailableError

_UPGRADE_CORE = "Upgrade core: pip install --upgrade weight-readers"


class StillImporting(Exception):
    """The plugin's module is only half imported: the call came from inside its import. Never leaves the registry."""


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
    if not is_a(info, ReaderInfo):
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
        if not is_a(method, QuantMethodInfo):
            raise failure(PluginContractError, f"its quant-method hook listed {shown(method)}", source)
    return tuple(methods)
