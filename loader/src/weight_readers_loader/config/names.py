# SPDX-License-Identifier: Apache-2.0
"""Whether a reader's options are any reader's, and an engine's keys any veto's: before a file is looked at."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from weight_readers import ConfigError, ReaderInfo
from weight_readers_loader.config.asked import installed
from weight_readers_loader.config.layers import LayeredConfig
from weight_readers_loader.config.refusals import closest, hint

_CLOSE = 0.7
"""How alike a key of the engine must be to one that is known. Engines have many more; ``lora_path`` is not ``lora``."""


def check_reader_options(config: LayeredConfig) -> None:
    """Raise ConfigError for an option that the named reader does not have, or that no installed reader has.

    A reader that is named and cannot be used here is left to selection, which says what to install.
    """
    given = config.reader_options()
    if not given:
        return
    readers, named = installed(), config.value("reader")
    if named is not None and named not in readers:
        return
    asked = {named: readers[named]} if named is not None else readers
    for name, setting in given.items():
        if not any(name in info.options for info in asked.values()):
            who = f"reader {named!r} has" if named is not None else "no installed reader has"
            option = f"{'no option' if named is not None else 'an option'} {name!r}"
            raise ConfigError(
                f"{who} {option} ({setting.source})", option=name, source=setting.source, fix=_fix(name, asked, readers)
            )


def _fix(name: str, asked: Mapping[str, ReaderInfo], readers: Mapping[str, ReaderInfo]) -> str:
    others = [reader for reader, info in readers.items() if name in info.options]
    if others:
        return f"It is an option of {', '.join(map(repr, others))}"
    known = frozenset[str]().union(*(info.options for info in asked.values()))
    return hint(name, known) if known else "It has no options"


def warn_of_engine_keys(engine: Mapping[str, Any] | None) -> None:
    """Warn of a key that nobody reads and that is close to one that a veto reads: it would be ignored otherwise."""
    if not engine:
        return
    known: Collection[str] = frozenset[str]().union(*(info.engine_keys for info in installed().values()))
    for key in engine:
        if isinstance(key, str) and key not in known and (close := closest(key, known, _CLOSE)):
            warnings.warn(f"engine: no reader reads the key {key!r}. Did you mean {close!r}?", stacklevel=3)
