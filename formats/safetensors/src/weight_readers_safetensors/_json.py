# SPDX-License-Identifier: Apache-2.0
"""JSON as strictly as the safetensors library reads it: what the json module lets pass is refused here."""

from __future__ import annotations

import json
import math
from typing import Any


def has_lone_surrogate(value: Any) -> bool:
    """Whether a string in ``value`` cannot be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def depth(value: Any) -> int:
    """How many lists and objects stand inside each other in ``value``, itself included."""
    levels, level = 0, [value]
    while level := [each for each in level if isinstance(each, (list, dict))]:
        levels += 1
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return levels


def _whole(text: str) -> int | float:
    # -0 is a float to the safetensors library, and a number beyond the doubles is refused by it.
    return -0.0 if text == "-0" else int(text) if len(text) < 309 else int(_real(text))


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:24]}… is out of range" if len(text) > 24 else f"{text} is out of range")
    return value


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON value")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:64]!r} appears twice in one object")
    return found


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole, parse_float=_real, parse_constant=_constant)
"""The json module made as strict as the safetensors library (serde_json), and refusing equal keys."""
