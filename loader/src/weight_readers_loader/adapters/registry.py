# SPDX-License-Identifier: Apache-2.0
"""Adapters by name: those of this package, and those that other distributions add, as for a quantization of theirs.

A distribution adds one by an entry point in the group ``weight_readers_adapters``: its name, and the class of the
adapter (or a function that makes one). It is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import importlib_metadata

from weight_readers import ConfigError, DuplicateReaderError, PluginContractError, PluginLoadError
from weight_readers_loader.adapters.dtypes import Dtype
from weight_readers_loader.adapters.made import Adapter
from weight_readers_loader.adapters.names import Prefix, Rename
from weight_readers_loader.adapters.rows import Concat, GroupedQKV, Split
from weight_readers_loader.config.refusals import hint

GROUP = "weight_readers_adapters"

OWN: Mapping[str, Any] = {
    "concat": Concat,
    "dtype": Dtype,
    "grouped_qkv": GroupedQKV,
    "prefix": Prefix,
    "rename": Rename,
    "split": Split,
}


def available_adapters() -> dict[str, str]:
    """Name -> the distribution that it comes from, sorted. Imports none.

    Raises DuplicateReaderError where two distributions have one name, or one has a name of this package.
    """
    found = dict.fromkeys(OWN, "weight-readers-loader")
    for entry_point, distribution in _declared():
        if entry_point.name in found and found[entry_point.name] != distribution:
            raise DuplicateReaderError(entry_point.name, distributions=[found[entry_point.name], distribution])
        found[entry_point.name] = distribution
    return dict(sorted(found.items()))


def adapter_named(name: str, **options: Any) -> Adapter:
    """The adapter ``name``, made with ``options``.

    Raises ConfigError for a name that nobody has (with the close match) and for options that it does not take,
    PluginLoadError where it cannot be imported, PluginContractError where it is no `Adapter`.
    """
    known = available_adapters()
    if name not in known:
        raise ConfigError(f"there is no adapter {name!r}", option="adapters", fix=hint(name, known))
    make = OWN[name] if name in OWN else _loaded(name, known[name])
    _must_take(make, name, options)
    try:
        adapter = make(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"adapter {name!r}: {error}", option="adapters") from error
    if not isinstance(adapter, Adapter):
        what = f"adapter {name!r} of {known[name]} is {type(adapter).__name__}, not an Adapter"
        raise PluginContractError(what, name=name, code="broken", distribution=known[name])
    return adapter


def _must_take(make: Any, name: str, options: Mapping[str, Any]) -> None:
    try:
        parameters = signature(make).parameters
    except (TypeError, ValueError):  # not every callable tells
        return
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            fix = hint(option, parameters) if parameters else "It has none"
            raise ConfigError(f"adapter {name!r} has no option {option!r}", option="adapters", fix=fix)


def _loaded(name: str, distribution: str) -> Any:
    entry_point = next(each for each, owner in _declared() if (each.name, owner) == (name, distribution))
    try:
        return entry_point.load()
    except Exception as error:
        what = f"adapter {name!r} of {distribution} is broken: {type(error).__name__}: {error}"
        fix = f"Mend or remove it: pip install --force-reinstall {distribution}"
        raise PluginLoadError(what, name=name, fix=fix, code="broken", distribution=distribution) from error


def _declared() -> list[tuple[Any, str]]:
    """Entry points of the group with their distributions, one distribution at a time: a broken one hides no other."""
    found: list[tuple[Any, str]] = []
    for distribution in importlib_metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
            ours = [each for each in distribution.entry_points if each.group == GROUP] if GROUP in text else []
            found += [(each, str(distribution.metadata["Name"])) for each in ours]
        except Exception:  # noqa: S112 - `doctor` tells of metadata that cannot be read
            continue
    return found
