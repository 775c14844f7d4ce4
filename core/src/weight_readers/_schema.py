# SPDX-License-Identifier: Apache-2.0
"""What all schema classes share: validated coercion of fields, and a JSON round trip."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=Enum)
S = TypeVar("S", bound="Schema")
Coercion = Callable[[str, Any], Any]


class Schema:
    """Base of the frozen schema dataclasses.

    A field with ``metadata={"coerce": function}`` is passed through ``function(field_name, value)`` when the
    instance is made, so that hand-written arguments and JSON take one and the same path.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            coerce = field.metadata.get("coerce")
            if coerce is not None:
                name = f"{type(self).__name__}.{field.name}"
                object.__setattr__(self, field.name, coerce(name, getattr(self, field.name)))

    def to_json(self) -> dict[str, Any]:
        """The instance as plain JSON data; `from_json` gives an equal instance back."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.metadata.get("json", True)}

    @classmethod
    def from_json(cls: type[S], data: Mapping[str, Any]) -> S:
        """The instance that `to_json` described. Raises TypeError for a field this version does not have."""
        known = {f.name for f in dataclasses.fields(cls) if f.metadata.get("json", True)}
        if unknown := sorted(set(data) - known):
            raise TypeError(f"{cls.__name__} has no field {unknown}; it has {sorted(known)}")
        return cls(**data)


def _plain(value: Any) -> Any:
    if isinstance(value, Schema):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)  # what an engine was asked for may hold anything, a torch.dtype say


def _items(name: str, value: Any) -> list[Any]:
    # A bare string is iterable too, and would become a set of its letters.
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a collection of values, not {value!r}")
    return list(value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")
    return value


def names(name: str, value: Any) -> frozenset[str]:
    return frozenset(text(name, item) for item in _items(name, value))


def ordered_names(name: str, value: Any) -> tuple[str, ...]:
    return tuple(text(name, item) for item in _items(name, value))


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, not {value!r}")
    return {text(name, key): item for key, item in value.items()}


def member(kind: type[E]) -> Coercion:
    def coerce(name: str, value: Any) -> E:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{name} must be one of {[m.value for m in kind]}, not {value!r}") from None

    return coerce


def members(kind: type[E]) -> Coercion:
    one = member(kind)
    return lambda name, value: frozenset(one(name, item) for item in _items(name, value))


def schema(kind: type[S]) -> Coercion:
    """One ``kind``, given as an instance or as its JSON."""

    def coerce(name: str, value: Any) -> S:
        item = kind.from_json(value) if isinstance(value, Mapping) else value
        if not isinstance(item, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
        return item

    return coerce


def schemas(kind: type[S]) -> Coercion:
    """A tuple of ``kind``, each given as an instance or as its JSON."""
    one = schema(kind)
    return lambda name, value: tuple(one(name, item) for item in _items(name, value))


def binary(name: str, value: Any) -> bytes:
    """Bytes, or the hexadecimal text that stands for them in JSON."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be bytes, or hexadecimal text, not {value!r}") from None


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def whole(minimum: int | None = None) -> Coercion:
    """A whole number, of at least ``minimum``."""

    def coerce(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        if minimum is not None and value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")
        return value

    return coerce


def index(name: str, value: Any) -> int:
    """What Python takes as an index, a number of numpy's say, but for a truth value."""
    try:
        # Torch's truth values are indices to Python, and so are its tensors of one element.
        is_flag = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
        if is_flag or getattr(value, "ndim", False):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None


def fraction(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a fraction between 0 and 1, not {value!r}")
    return float(value)


def optional(coerce: Coercion) -> Coercion:
    """None, where a fact is not known or not asked for, or what ``coerce`` takes."""
    return lambda name, value: None if value is None else coerce(name, value)
