# SPDX-License-Identifier: Apache-2.0
"""The registry: what is installed, who fits a request, and the reader itself.

Nothing is scanned at import. The first question scans, and the answer is kept until `Registry.refresh`.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import importlib_metadata

from weight_readers import _report, _select, quant
from weight_readers._arguments import check_arguments, check_name
from weight_readers._entry_points import scan
from weight_readers._inventory import Inventory
from weight_readers._settings import Settings
from weight_readers.capabilities import QuantMethodInfo, ReaderInfo, Request
from weight_readers.environment import Environment
from weight_readers.format_table import FormatTable
from weight_readers.reader import WeightReader
from weight_readers.selection import Selection

Distributions = Iterable[importlib_metadata.Distribution]


class Registry:
    """What is installed, as one instance. The functions of `weight_readers` use a shared default one.

    Make your own for tests, frozen applications or embedding: ``plugins`` maps names to plugin modules or
    objects and comes on top of what ``distributions`` declare (default: everything installed; pass ``()`` for
    none, or a function, which each scan calls). ``environment`` holds facts about the machine that every request
    is judged with unless it brings its own, ``environ`` the process environment that settings are read from.
    """

    def __init__(
        self,
        *,
        plugins: Mapping[str, object] | None = None,
        distributions: Distributions | Callable[[], Distributions] | None = None,
        environment: Environment | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        check_arguments(environment=environment)
        self._explicit = dict(plugins or {})
        self._distributions = _repeatable(distributions)
        self._environment = environment or Environment()
        self._environ = os.environ if environ is None else environ
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None

    def available_reader_names(self) -> list[str]:
        """Names of the readers that are installed and usable here, sorted. Imports no backend."""
        return self._current().available(self._environment)

    def describe_reader(self, name: str) -> ReaderInfo:
        """What reader ``name`` declares.

        Raises UnknownReaderError, DuplicateReaderError, or ReaderUnavailableError where it is ours but not
        installed, or installed and disabled or broken.
        """
        check_name(name)
        inventory = self._current()
        inventory.check_known(name)
        return inventory.usable(name).info

    def file_formats(self) -> FormatTable:
        """How files are told by name and first bytes; see `weight_readers.file_formats`."""
        return self._current().file_formats()

    def explain(
        self,
        request: Request | None = None,
        *,
        requested: str | None = None,
        strict: bool | None = None,
        environment: Environment | None = None,
    ) -> Selection:
        """Judge every reader, and make none. Raises UnknownReaderError or DuplicateReaderError for ``requested``."""
        check_arguments(request=request, requested=requested, strict=strict, environment=environment)
        return _select.explain(
            self._current(),
            request or Request(),
            environment or self._environment,
            requested=requested,
            strict=strict,
        )

    def select(
        self,
        request: Request | None = None,
        *,
        requested: str | None = None,
        strict: bool | None = None,
        environment: Environment | None = None,
    ) -> WeightReader:
        """Pick a reader and make it; see `weight_readers.select_weight_reader`."""
        check_arguments(request=request, requested=requested, strict=strict, environment=environment)
        return _select.select(
            self._current(),
            request or Request(),
            environment or self._environment,
            requested=requested,
            strict=strict,
        )

    def available_quant_methods(self) -> list[QuantMethodInfo]:
        """The quant methods of every usable reader's plugin, sorted by name. Imports no backend."""
        return [method for _, method in quant.offered(self._current(), self._environment)]

    def select_quant_method(self, weight_type: str, device_type: str) -> QuantMethodInfo:
        """The one method for ``weight_type`` on ``device_type``; see `weight_readers.select_quant_method`."""
        return quant.select(quant.offered(self._current(), self._environment), weight_type, device_type)

    def report(self) -> dict[str, Any]:
        """Everything known, as plain data; see `weight_readers.registry_report`."""
        return _report.report(self._current(), self._environment)

    def refresh(self) -> None:
        """Forget everything and scan again at the next question. Modules that are imported already stay so."""
        importlib.invalidate_caches()
        with self._lock:
            self._inventory = None

    def _current(self) -> Inventory:
        """One generation, and every answer comes out of one: a refresh in between does not mix two."""
        inventory = self._inventory
        if inventory is not None:
            return inventory
        # Scanned without the lock, like all that runs foreign code: the first to publish wins.
        fresh = Inventory(scan(self._distributions()), Settings.of(self._environ), self._explicit)
        with self._lock:
            inventory = self._inventory = self._inventory or fresh
        if inventory is fresh:
            inventory.settings.warn_of_unknown(inventory.known_names())
        return inventory


def _repeatable(distributions: Distributions | Callable[[], Distributions] | None) -> Callable[[], Distributions]:
    if distributions is None:
        return lambda: importlib_metadata.distributions()  # type: ignore[return-value]
    if callable(distributions):
        return distributions
    fixed = tuple(distributions)
    return lambda: fixed
