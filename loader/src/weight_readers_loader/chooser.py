# SPDX-License-Identifier: Apache-2.0
"""The readers of one checkpoint: asked of core once per kind of request, kept with what they have parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import Environment, Request, Selection, WeightReader, explain_selection, select_weight_reader


class Chooser:
    """Asks core for a reader, with what is the same in all requests of one checkpoint."""

    def __init__(
        self,
        *,
        format: str,  # noqa: A002 - the word of `Request`
        reader: str | None,
        strict: bool | None,
        options: Mapping[str, Any],
        environment: Environment | None,
    ) -> None:
        self._common: dict[str, Any] = {
            "format": format,
            "schemes": frozenset({"file"}),
            "options": options,
        }
        self._keywords: dict[str, Any] = {"requested": reader, "strict": strict, "environment": environment}
        self._made: dict[tuple[Any, ...], WeightReader] = {}

    def pick(self, **needs: Any) -> WeightReader:
        """The reader for these needs: one that was made before, with its parsed headers, where it is picked again."""
        request = Request(**self._common, **needs)
        selection = explain_selection(request=request, **self._keywords)
        reader = self._made.get(_setup(selection))
        if reader is None:
            reader = select_weight_reader(request=request, **self._keywords)
            self._made[_setup(reader.selection)] = reader
        else:
            reader.selection = selection
        return reader


def _setup(selection: Selection | None) -> tuple[Any, ...]:
    """The chosen reader and the settings it was made with."""
    chosen = selection.candidate(selection.chosen) if selection is not None and selection.chosen else None
    return (chosen.name, *sorted(chosen.settings.items())) if chosen is not None else ()
