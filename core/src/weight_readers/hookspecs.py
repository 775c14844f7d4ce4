# SPDX-License-Identifier: Apache-2.0
"""The four hooks of a plugin, in pluggy's terms. A plugin module implements the first and the third, at least.

    import weight_readers

    @weight_readers.hookimpl
    def weight_readers_describe() -> weight_readers.ReaderInfo: ...

    @weight_readers.hookimpl
    def weight_readers_create(options) -> weight_readers.WeightReader: ...

and registers itself in its pyproject.toml:

    [project.entry-points.weight_readers]
    my_reader = "my_package.plugin"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from weight_readers.capabilities import Declined, QuantMethodInfo, ReaderInfo, Request
from weight_readers.environment import Environment

if TYPE_CHECKING:
    from weight_readers.reader import WeightReader

PROJECT_NAME = "weight_readers"
"""pluggy project name, and the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec(firstresult=True)
def weight_readers_describe() -> ReaderInfo:  # type: ignore[empty-body]
    """Describe the reader. Light and static: the standard library and core only, no backend."""


@hookspec(firstresult=True)
def weight_readers_check(request: Request, environment: Environment) -> Declined | None:
    """Veto a request, with a reason (optional). Cheap: runs for every selection, before any download."""


@hookspec(firstresult=True)
def weight_readers_create(options: Mapping[str, Any]) -> WeightReader:  # type: ignore[empty-body]
    """Make the reader; its backend is imported here.

    ``options`` are constructor options, all of them named in `ReaderInfo.options`. A bad value is a ValueError
    or TypeError that names the option and its range.
    """


@hookspec(firstresult=True)
def weight_readers_quant_methods() -> Sequence[QuantMethodInfo]:  # type: ignore[empty-body]
    """List the quant methods that come with the reader (optional). Light, like describe."""
