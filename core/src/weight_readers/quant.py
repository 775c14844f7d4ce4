# SPDX-License-Identifier: Apache-2.0
"""Quant methods: what computes with packed weights, as the plugins of readers registered it."""

from __future__ import annotations

from collections.abc import Sequence

from weight_readers import _catalogue
from weight_readers._entry_points import Source
from weight_readers._inventory import Inventory
from weight_readers._plugins import Plugin
from weight_readers.capabilities import QuantMethodInfo
from weight_readers.environment import Environment
from weight_readers.errors import DuplicateReaderError, NoSuitableQuantMethodError

Offer = tuple[Source, QuantMethodInfo]


def offered(inventory: Inventory, environment: Environment) -> list[Offer]:
    """Each method of every usable reader's plugin, with its source, sorted by name and device."""
    usable = inventory.available(environment)
    plugins = [p for p in inventory.plugins() if isinstance(p, Plugin) and p.info.name in usable]
    offers = [(plugin.source, method) for plugin in plugins for method in plugin.quant_methods]
    return sorted(offers, key=lambda offer: (offer[1].name, sorted(offer[1].device_types), offer[0].name))


def select(offers: Sequence[Offer], weight_type: str, device_type: str) -> QuantMethodInfo:
    """The one method for ``weight_type`` on ``device_type`` (``cuda``, also of ``cuda:0``); never of another device.

    Raises NoSuitableQuantMethodError where there is none, DuplicateReaderError where there are two, TypeError for
    what is no text.
    """
    for name, value in (("weight_type", weight_type), ("device_type", device_type)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, not {value!r}")
    device_type = device_type.partition(":")[0]
    fitting = [(s, m) for s, m in offers if weight_type in m.weight_types and device_type in m.device_types]
    if len(fitting) > 1:
        owners = [f"{method.name} of {source.origin}" for source, method in fitting]
        fix = f"Disable all but one of their readers: WEIGHT_READERS_DISABLE={fitting[-1][0].name}"
        raise DuplicateReaderError(f"{weight_type} on {device_type}", distributions=owners, fix=fix)
    if fitting:
        return fitting[0][1]
    names = [f"{method.name} on {', '.join(sorted(method.device_types))}" for _, method in offers]
    hint = _hint(offers, weight_type, device_type) if offers else _catalogue.install_hint("gguf")
    raise NoSuitableQuantMethodError(weight_type, device_type, available=names, fix=hint)


def _hint(offers: Sequence[Offer], weight_type: str, device_type: str) -> str | None:
    """The weight types that there are on that device, and the one that may have been meant."""
    types = {kind for _, method in offers if device_type in method.device_types for kind in method.weight_types}
    if not types:
        return None
    # ``Q4_K_M`` is a mixture of types that files are named after; ``q4_k`` is a slip of the shift key.
    close = max((kind for kind in types if weight_type.upper().startswith(kind)), key=len, default=None)
    meant = f"Did you mean {close!r}? " if close else ""
    return f"{meant}Weight types on {device_type}: {', '.join(sorted(types))}"
