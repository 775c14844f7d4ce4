# SPDX-License-Identifier: Apache-2.0
"""A configuration file: TOML or JSON, options for all stages, and more by stage in the table ``stages``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weight_readers import ConfigError
from weight_readers_loader.config.layers import Layer
from weight_readers_loader.config.model import LoadConfig
from weight_readers_loader.config.refusals import hint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """The layer for every stage, and those of single ones by name."""

    source: str
    common: Layer
    stages: Mapping[str, Layer]

    def stage(self, name: str) -> Layer:
        """Raises ConfigError with the close match."""
        if name not in self.stages:
            there = hint(name, self.stages) if self.stages else "It has no table [stages.NAME]"
            raise ConfigError(f"{self.source} has no stage {name!r}", option="stage", source=self.source, fix=there)
        return self.stages[name]


def read_config_file(path: str | os.PathLike[str]) -> ConfigFile:
    """Read and check the whole file, stages that nobody asks for included. Raises ConfigError naming the file."""
    name = Path(path).expanduser()
    source = f"file {name}"
    data = _parsed(name)
    stages = data.pop("stages", {})
    if not isinstance(stages, Mapping) or not all(isinstance(each, Mapping) for each in stages.values()):
        raise ConfigError(f"{source}: 'stages' must be a table of tables, as [stages.transformer]", option="stages")
    named = {stage: f"{source}, stage {stage}" for stage in stages}
    return ConfigFile(
        source=source,
        common=Layer(source=source, values=LoadConfig.of(data, source=source)),
        stages={
            stage: Layer(source=named[stage], values=LoadConfig.of(values, source=named[stage]))
            for stage, values in stages.items()
        },
    )


def _parsed(path: Path) -> dict[str, Any]:
    parse = {".toml": _toml, ".json": _json}.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(f"a configuration file is .toml or .json, not {str(path)!r}", option="config")
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        what = f"the configuration file {str(path)!r} cannot be read: {error.strerror}"
        raise ConfigError(what, option="config") from error
    except (ValueError, RecursionError) as error:  # of TOML, JSON, and UTF-8
        raise ConfigError(f"{str(path)!r} is no {path.suffix[1:].upper()}: {error}", option="config") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{str(path)!r} must hold an object with options, not {type(found).__name__}", option="config"
        )
    return found


def _toml(text: str) -> Any:
    return tomllib.loads(text)


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"{twice!r} is given twice")
    return found
