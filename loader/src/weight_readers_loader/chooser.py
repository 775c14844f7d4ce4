# SPDX-License-Identifier: Apache-2.0
"""The readers of one checkpoint: asked of core once per kind of request, kept with what they have parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weight_readers import Environment, Request, Selection, WeightReader, explain_selection, select_weight_reader
from weight_readers_loader.arguments import flags, whole

MOST_THREADS = 1024
"""As many as a reader with threads takes."""


class Chooser:
    """Asks core for a reader, with what is the same in all requests of one checkpoint.

    Core warns whenever it makes a reader that stands in for another. One checkpoint hears it once: later requests
    ask for the stand-in by its name.
    """

    def __init__(
        self,
        *,
        format: str,  # noqa: A002 - the word of `Request`
        scheme: str = "file",
        reader: str | None = None,
        strict: bool | None = None,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._common: dict[str, Any] = {
            "format": format,
            "schemes": frozenset({scheme}),
            "options": options or {},
            "settings": settings or {},
            "engine": engine or {},
        }
        self._requested = reader
        self._keywords: dict[str, Any] = {"strict": strict, "environment": environment}
        self._made: dict[tuple[Any, ...], WeightReader] = {}
        self._replaced: dict[str, Selection] = {}

    def request(self, **needs: Any) -> Request:
        return Request(**self._common, **needs)

    def explain(self, **needs: Any) -> Selection:
        """What `pick` would decide. Makes no reader."""
        return explain_selection(request=self.request(**needs), requested=self._requested, **self._keywords)

    def require(self, **needs: Any) -> None:
        """Raise what `pick` would where no reader fits. Makes none otherwise."""
        if self.explain(**needs).chosen is None:
            self.pick(**needs)

    def pick(self, **needs: Any) -> tuple[WeightReader, Selection]:
        """The reader for these needs, and why it is that one.

        A reader that was made before is used again with its parsed headers, where it is picked again.
        """
        request, selection = self.request(**needs), self.explain(**needs)
        earlier = self._replaced.get(selection.chosen or "")
        if earlier is None:
            return self._reader(request, selection, self._requested)
        by_name = explain_selection(request=request, requested=earlier.chosen, **self._keywords)
        reader, _ = self._reader(request, by_name, earlier.chosen)
        same = selection.chosen == earlier.chosen
        reader.selection = selection if same else replace(earlier, request=request)
        return reader, reader.selection

    def _reader(self, request: Request, selection: Selection, requested: str | None) -> tuple[WeightReader, Selection]:
        reader = self._made.get(_setup(selection))
        if reader is not None:
            reader.selection = selection
            return reader, selection
        reader = select_weight_reader(request=request, requested=requested, **self._keywords)
        made = reader.selection
        assert made is not None  # noqa: S101 - core sets it on every reader it makes
        self._made[_setup(made)] = reader
        if made.fallback or made.chosen != selection.chosen:
            self._replaced[selection.chosen or ""] = made
        return reader, made


def _setup(selection: Selection) -> tuple[Any, ...]:
    """The chosen reader and the settings it was made with."""
    chosen = selection.candidate(selection.chosen) if selection.chosen else None
    return (chosen.name, *sorted(chosen.settings.items())) if chosen is not None else ()


DEQUANTIZED = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"} | {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""What ``dequantize`` may be, in torch's words and in short ones."""


def with_dequantize(options: Mapping[str, Any] | None, dequantize: str | None) -> dict[str, Any]:
    """Constructor options with the one for the dtype of quantized weights. Raises ValueError naming the option."""
    given = dict(options or {})
    if dequantize is None:
        return given
    if dequantize not in DEQUANTIZED:
        raise ValueError(f"dequantize must be one of {', '.join(DEQUANTIZED)}, not {dequantize!r}")
    if given.get("dequantize", DEQUANTIZED[dequantize]) != DEQUANTIZED[dequantize]:
        raise ValueError(f"dequantize={dequantize!r} and reader_options[dequantize]={given['dequantize']!r} differ")
    return given | {"dequantize": DEQUANTIZED[dequantize]}


def thread_settings(enabled: bool, threads: int | None) -> dict[str, int]:
    """The reader's setting for the two options that engines know. Raises TypeError or ValueError naming the option."""
    flags(enable_multithread_weight_load=enabled)
    whole("num_weight_load_threads", threads, least=1, most=MOST_THREADS)
    if not enabled:
        if threads not in (None, 1):
            raise ValueError(f"num_weight_load_threads={threads} needs enable_multithread_weight_load=True")
        return {"num_threads": 1}
    return {} if threads is None else {"num_threads": threads}
