# SPDX-License-Identifier: Apache-2.0
"""Everything the registry knows, as plain JSON data for people and bug reports."""

from __future__ import annotations

import platform
from typing import Any

from weight_readers import _catalogue
from weight_readers._entry_points import Source
from weight_readers._inventory import Inventory
from weight_readers._plugins import Broken, Plugin
from weight_readers.capabilities import API_VERSION, Request
from weight_readers.environment import Environment
from weight_readers.policy import Rejected

_LISTED_ELSEWHERE = ("broken", "disabled", "duplicate")


def report(inventory: Inventory, environment: Environment) -> dict[str, Any]:
    """Readers, and for each one that is not usable why; shadowed copies, unreadable metadata, missing extras."""
    standings = inventory.standings(Request(), environment)
    unusable = {s.name: s.verdict for s in standings if isinstance(s.verdict, Rejected)}
    plugins = inventory.plugins()
    return {
        "schema": 1,
        "api_version": API_VERSION,
        "core_version": _catalogue.installed_version(_catalogue.DISTRIBUTION),
        "python": platform.python_version(),
        "available": [s.name for s in standings if s.name not in unusable],
        "readers": {p.source.name: p.info.to_json() | _origin(p.source) for p in plugins if isinstance(p, Plugin)},
        "formats": inventory.file_formats().to_json(),
        "format_conflicts": [str(error) for error in inventory.file_formats().conflicts()],
        "broken": {p.source.name: _cause(p) | _origin(p.source) for p in plugins if isinstance(p, Broken)},
        "unusable": {name: v.to_json() for name, v in unusable.items() if v.code not in _LISTED_ELSEWHERE},
        "disabled": {name: _origin(inventory.sources(name)[0]) for name in unusable if inventory.is_disabled(name)},
        "duplicates": inventory.duplicates(),
        "shadowed": [str(source) for source in inventory.scan.shadowed],
        "unreadable": [{"location": where, "cause": why} for where, why in inventory.scan.unreadable],
        "missing_extras": _catalogue.missing_extras(),
        "settings": inventory.settings.to_json(),
    }


def _cause(broken: Broken) -> dict[str, Any]:
    return {"error": type(broken.error).__name__, "cause": str(broken.error), "traceback": broken.trace}


def _origin(source: Source) -> dict[str, Any]:
    return {"distribution": source.distribution, "version": source.version, "location": source.location}
