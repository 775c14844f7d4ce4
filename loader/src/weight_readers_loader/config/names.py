# SPDX-License-Identifier: Apache-2.0
"""Whether a reader's name and options are any reader's, and an engine's keys any veto's: before a file is looked at."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from weight_readers import ConfigError, Feature, ReaderInfo, explain_selection
from weight_readers.spelling import closest
from weight_readers_loader.config.asked import installed
from weight_readers_loader.config.layers import LayeredConfig
from weight_readers_loader.config.refusals import hint

_CLOSE = 0.7
"""How alike a key of the engine must be to one that is known. Engines have many more; ``lora_path`` is not ``lora``."""

_THERE = frozenset({Feature.LISTS, Feature.FETCHES})
"""What a reader does in a store for the reader of the weights."""


def check_reader_name(named: str | None) -> None:
    """Raise UnknownReaderError for a name that no reader has, installed or not; DuplicateReaderError for one of two."""
    if named is not None:
        explain_selection(requested=named, strict=False)


def check_reader_options(config: LayeredConfig, named: str | None, scheme: str) -> None:
    """Raise ConfigError for an option that the ``named`` reader does not have, or that no installed reader has.

    In the store of ``scheme`` it may also be one of the reader that lists and fetches there for the named one. Where a
    reader is lacking, the named one or one for the store, selection is left to say what to install.
    """
    if not (given := config.reader_options()):
        return
    readers = installed()
    there = _working_in(scheme, readers)
    if (named is not None and named not in readers) or (scheme != "file" and not there):
        return
    asked = readers if named is None else {named: readers[named], **there}
    who = "no installed reader has an option" if named is None else f"reader {named!r} has no option"
    for name, setting in given.items():
        if not any(name in info.options for info in asked.values()):
            said, fix = f"{who} {name!r} ({setting.source})", _fix(name, asked, readers)
            raise ConfigError(said, option=name, source=setting.source, fix=fix)


def _working_in(scheme: str, readers: Mapping[str, ReaderInfo]) -> dict[str, ReaderInfo]:
    """The readers that list or fetch in the store of ``scheme``; local files need neither."""
    if scheme == "file":
        return {}
    return {name: info for name, info in readers.items() if scheme in info.schemes and _THERE & info.features}


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
