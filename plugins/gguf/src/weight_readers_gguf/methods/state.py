# SPDX-License-Identifier: Apache-2.0
"""What a packed buffer holds, as plain data to keep beside it: bytes alone do not tell Q4_0 from IQ4_NL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods.linear import layout_of
from weight_readers_gguf.methods.segments import Layout, Run


def describe(layer: nn.Module) -> dict[str, Any]:
    """The layer's packed weight as data that JSON takes: logical shape, and rows, bytes and type of each part."""
    return _described(layout_of(layer))


def check_description(layer: nn.Module, description: Mapping[str, Any]) -> None:
    """Refuse with `TargetMismatchError` bytes that were saved from a layer with another layout."""
    layout = layout_of(layer)
    wanted = _described(layout)
    if isinstance(description, Mapping) and dict(description) == wanted:
        return
    raise TargetMismatchError(
        f"the saved bytes are not those of layer {layout.prefix!r}: it holds {_short(wanted)},"
        f" they are {_short(description)}",
        fix="Build the model from the file that the state was saved from",
        shapes=[(layout.prefix, _short(description), _short(wanted))],
    )


def _described(layout: Layout) -> dict[str, Any]:
    return {"format": "gguf", "shape": list(layout.shape), "parts": [_part(run) for run in layout.runs]}


def _part(run: Run) -> dict[str, Any]:
    return {"type": run.type.name, "ggml_type": run.type.id, "rows": run.rows, "row_bytes": run.row_bytes}


def _short(description: object) -> str:
    """The description in a few words, whatever it is: files can be damaged."""
    if not isinstance(description, Mapping) or not isinstance(description.get("parts", []), list):
        return f"{type(description).__name__} {description!r:.40}"
    parts = [part for part in description.get("parts", []) if isinstance(part, Mapping)]
    types = "+".join(f"{part.get('type')}[{part.get('rows')} rows]" for part in parts) or "nothing known"
    return f"{types} {description.get('shape', '')}"
