# SPDX-License-Identifier: Apache-2.0
"""The adapters that a configuration names, made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import ConfigError
from weight_readers_loader.adapters import Adapter, Dtype, adapter_named
from weight_readers_loader.config.layers import LayeredConfig


def configured_adapters(config: LayeredConfig) -> list[Adapter]:
    """Those of ``adapters`` in their order, and at last the one of ``dtype``.

    Raises ConfigError naming the source, and what `adapter_named` raises.
    """
    found: list[Adapter] = []
    given = config.setting("adapters")
    if given is not None:
        found += [_adapter(table, given.source) for table in given.value]
    return found + _dtype(config)


def _adapter(table: Mapping[str, Any], source: str) -> Adapter:
    options = dict(table)
    name = options.pop("name", None)
    if not isinstance(name, str):
        what = f"an adapter is a table with its name and options, as {{name = 'prefix', add = 'a.'}}, not {table!r}"
        raise ConfigError(f"{what} ({source})", option="adapters", source=source)
    return adapter_named(name, **options)


def _dtype(config: LayeredConfig) -> list[Adapter]:
    dtype, keep = config.setting("dtype"), config.setting("keep_dtype")
    if dtype is not None:
        return [Dtype(dtype.value, keep=keep.value if keep is not None else ())]
    if keep is not None:
        raise ConfigError(
            f"{keep} keeps dtypes from nothing", option=keep.name, source=keep.source, fix="Give dtype too"
        )
    return []
