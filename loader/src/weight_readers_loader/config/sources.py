# SPDX-License-Identifier: Apache-2.0
"""Where layers come from: a file, the environment, and what an engine has for all stages and for this one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from weight_readers import ConfigError
from weight_readers.spelling import closest
from weight_readers_loader.config.files import ConfigFile, read_config_file
from weight_readers_loader.config.layers import Layer, LayeredConfig
from weight_readers_loader.config.model import LoadConfig
from weight_readers_loader.config.variables import FILE, PREFIX, known_variables, of_environment

Given = LoadConfig | Mapping[str, Any] | None


def layered(
    *,
    file: str | os.PathLike[str] | None = None,
    engine: Given = None,
    stage: Given = None,
    stage_name: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> LayeredConfig:
    """The layers of a load, the lowest first: file, environment, ``engine``, the file's stage, ``stage``.

    file: TOML or JSON; otherwise the one that WEIGHT_READERS_CONFIG names. Its table ``stages`` has further options
        by the name of a stage: those of ``stage_name`` count.
    engine, stage: what an engine is configured with, for all stages and for this one; a mapping will do.
    environ: variables ``WEIGHT_READERS_…``, named after the options.

    Arguments of `open_checkpoint` and flags of the command come on top. Raises ConfigError for an option that is
    unknown or ill-typed in any of them, naming the place, and for a ``stage_name`` that the file does not have.
    """
    _warn_of_unknown(environ)
    path = file if file is not None else environ.get(FILE) or None
    found = read_config_file(path) if path is not None else None
    layers = [found.common] if found is not None else []
    layers += [of_environment(environ), *_given("engine", engine)]
    layers += [_stage(found, stage_name)] if stage_name is not None else []
    layers += _given("stage", stage)
    return LayeredConfig(tuple(layers))


def _given(source: str, values: Given) -> list[Layer]:
    if values is None:
        return []
    if not isinstance(values, (LoadConfig, Mapping)):
        raise TypeError(f"{source} must be a LoadConfig, a mapping of options or None, not {type(values).__name__}")
    config = values if isinstance(values, LoadConfig) else LoadConfig.of(values, source=source)
    return [Layer(source=source, values=config)]


def _stage(found: ConfigFile | None, name: str) -> Layer:
    if found is None:
        what = f"stage {name!r} is named, and there is no configuration file that could have it"
        raise ConfigError(what, option="stage", fix="Give the file too: --config FILE, or layered(file=…)")
    return found.stage(name)


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    """A misspelt variable would be ignored in silence. One that is close to none may be another program's."""
    known = {name.removeprefix(PREFIX) for name in known_variables()}
    for name in environ:
        own = name.removeprefix(PREFIX)
        if own != name and own not in known and (close := closest(own, known, 0.8)):
            warnings.warn(f"{name} is no variable of weight-readers. Did you mean {PREFIX + close!r}?", stacklevel=3)
