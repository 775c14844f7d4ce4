# SPDX-License-Identifier: Apache-2.0
"""Quant methods: what computes with packed weights, as the plugins of readers registered it."""

from __future__ import annotations

from collections.abc import Sequence

from weight_readers import _catalogue
from weight_readers._entry_points import Source
from weight_readers._inventory import Inventory
from weight_readers._plugins import Plugin
from weight_readers.capabilities import Environment, QuantMethodInfo
from weight_readers.errors import DuplicateReaderError, NoSuitableQuantMethodError

Offer = tuple[Source, QuantMethodInfo]


def offered(inventory: Inventory, environment: Environment) -> list[Offer]:
    """Each method of every usable reader's plugin, with its source, sorted by name and device."""
    usable = inventory.available(environment)
    plugins = [p for p in inventory.plugins() if isinstance(p, Plugin) and p.info.name in usable]
    offers = [(plugin.source, method) for plugin in plugins for method in plugin.quant_methods]
    return sorted(offers, key=lambda offer: (offer[1].name, sorted(offer[1].device_types), offer[0].name))


def select(offers: Sequence[Offer], weight_type: str, device_type: str) -> QuantMethodInfo:
    """The one method for ``weight_type`` on ``device_type``; never one of another device.

    Raises NoSuitableQuantMethodError where there is none, DuplicateReaderError where there are two.
    """
    fitting = [(s, m) for s, m in offers if weight_type in m.weight_types and device_type in m.device_types]
    if len(fitting) > 1:
        owners = [f"{method.name} of {source.origin}" for source, method in fitting]
        fix = f"Disable all but one of their readers: WEIGHT_READERS_DISABLE={fitting[-1][0].name}"
        raise DuplicateReaderError(f"{weight_type} on {device_type}", distributions=owners, fix=fix)
    if fitting:
        return fitting[0][1]
    names = [f"{method.name} on {', '.join(sorted(method.device_types))}" for _, method in offers]
    hint = None if offers else _catalogue.install_hint("gguf")
    raise NoSuitableQuantMethodError(weight_type, device_type, available=names, fix=hint)
