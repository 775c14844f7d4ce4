# SPDX-License-Identifier: Apache-2.0
"""The top layer: the arguments of a call, over whatever kind of configuration it was given."""

from __future__ import annotations

import os
from typing import Any

from weight_readers_loader.arguments import flags, shown, whole
from weight_readers_loader.config.layers import Layer, LayeredConfig
from weight_readers_loader.config.model import MOST_THREADS, LoadConfig
from weight_readers_loader.config.sources import layered

Configuration = LayeredConfig | LoadConfig | str | os.PathLike[str] | None


def configured(config: Configuration, **arguments: Any) -> LayeredConfig:
    """``config`` with the ``arguments`` on top, named after the fields of `LoadConfig`.

    Raises TypeError for a ``config`` of another kind, and ConfigError.
    """
    _check_threads(arguments)
    return _layers(config).over(Layer(source="argument", values=LoadConfig.of(arguments, source="argument")))


def _layers(config: Configuration) -> LayeredConfig:
    if isinstance(config, LayeredConfig):
        return config
    if config is None or isinstance(config, LoadConfig):
        return layered(engine=config)
    if isinstance(config, (str, os.PathLike)):
        return layered(file=config)
    kinds = "a LoadConfig, layers of them, the path of a configuration file"
    raise TypeError(f"config must be {kinds} or None, not {shown(config)}")


def _check_threads(arguments: dict[str, Any]) -> None:
    if (enabled := arguments.get("enable_multithread_weight_load")) is not None:
        flags(enable_multithread_weight_load=enabled)
    whole("num_weight_load_threads", arguments.get("num_weight_load_threads"), least=1, most=MOST_THREADS)
