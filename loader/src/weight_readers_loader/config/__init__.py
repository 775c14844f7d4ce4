# SPDX-License-Identifier: Apache-2.0
"""How weights are loaded, in one typed place: `LoadConfig`, given in layers, each value with its source."""

from weight_readers_loader.config.layers import Layer, LayeredConfig, Setting
from weight_readers_loader.config.model import LoadConfig
from weight_readers_loader.config.sources import layered

__all__ = ["Layer", "LayeredConfig", "LoadConfig", "Setting", "layered"]
