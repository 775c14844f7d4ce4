# SPDX-License-Identifier: Apache-2.0
"""The layer of environment variables: ``WEIGHT_READERS_`` and the name of an option in capitals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from weight_readers import ConfigError
from weight_readers_loader.config.layers import Layer
from weight_readers_loader.config.model import LoadConfig

PREFIX = "WEIGHT_READERS_"
FILE = "WEIGHT_READERS_CONFIG"
"""Names a configuration file."""

_OF_CORE = frozenset({"prefer", "strict"})
"""Options whose variables core reads too; it says what is wrong with them, and only where they are needed."""
_TRUTH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_LISTS = frozenset({"prefer", "keep_dtype"})
_JSON = {"reader_options": '{"huge_pages": true}', "adapters": '[{"name": "prefix", "add": "transformer."}]'}


def known_variables() -> dict[str, str]:
    """Variable -> the option that it gives, or what else it is for."""
    return {PREFIX + name.upper(): name for name in LoadConfig.model_fields} | {
        FILE: "a configuration file",
        "WEIGHT_READERS_DISABLE": "readers that are not loaded",
    }


def of_environment(environ: Mapping[str, str]) -> Layer:
    """What the variables give; an empty one gives nothing. Raises ConfigError naming the variable."""
    found: dict[str, Any] = {}
    for name in LoadConfig.model_fields:
        text = environ.get(PREFIX + name.upper(), "").strip()
        if text and (value := _value(name, text)) is not None:
            found[name] = value
    sources = {name: f"environment, {PREFIX}{name.upper()}" for name in found}
    for name, value in found.items():
        LoadConfig.of({name: value}, source=f"{PREFIX}{name.upper()}")
    return Layer(source="environment", values=LoadConfig.of(found, source="environment"), sources=sources)


def _value(name: str, text: str) -> Any:
    if name in _LISTS:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if name in _JSON:
        return _json(name, text)
    if bool in _kinds(LoadConfig.model_fields[name].annotation):
        truth = _TRUTH.get(text.lower())
        return truth if truth is not None or name in _OF_CORE else text
    return int(text) if text.lstrip("-").isdigit() else text


def _kinds(annotation: object) -> list[object]:
    """All that an annotation is made of."""
    return [annotation, *(kind for part in get_args(annotation) for kind in _kinds(part))]


def _json(name: str, text: str) -> Any:
    variable = PREFIX + name.upper()
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        what = f"{variable} must be JSON, as {_JSON[name]}, not {text!r}: {error}"
        raise ConfigError(what, option=name, source=variable) from error


def is_of_core(name: str, source: str) -> bool:
    """Whether core has the value from the same variable: it is left to core, whose reasons then name the variable."""
    return name in _OF_CORE and source == f"environment, {PREFIX}{name.upper()}"
