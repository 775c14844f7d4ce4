# SPDX-License-Identifier: Apache-2.0
"""Quant methods: what computes with packed weights, as the plugins of readers registered it."""

from __future__ import annotations

from weight_readers import _catalogue
from weight_readers.capabilities import QuantMethodInfo
from weight_readers.errors import DuplicateReaderError, NoSuitableQuantMethodError
from weight_readers.registry import Registry


def quant_methods(registry: Registry) -> list[tuple[str, QuantMethodInfo]]:
    """``(plugin's origin, method)`` of every usable reader's plugin, sorted by name and device."""
    usable = set(registry.available_reader_names())
    listed = [(p.origin, method) for p in registry.plugins() if p.name in usable for method in p.quant_methods]
    return sorted(listed, key=lambda item: (item[1].name, sorted(item[1].device_types), item[0]))


def select(registry: Registry, weight_type: str, device_type: str) -> QuantMethodInfo:
    """The one method for ``weight_type`` on ``device_type``; never one of another device.

    Raises NoSuitableQuantMethodError where there is none, DuplicateReaderError where two distributions offer one.
    """
    methods = quant_methods(registry)
    fitting = [(o, m) for o, m in methods if weight_type in m.weight_types and device_type in m.device_types]
    if len(fitting) > 1:
        raise DuplicateReaderError(f"{weight_type} on {device_type}", distributions=[o for o, _ in fitting])
    if fitting:
        return fitting[0][1]
    offered = [f"{m.name} on {', '.join(sorted(m.device_types))}" for _, m in methods]
    fix = None if methods else _catalogue.install_hint("gguf")
    raise NoSuitableQuantMethodError(weight_type, device_type, available=offered, fix=fix)
