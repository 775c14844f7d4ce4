# SPDX-License-Identifier: Apache-2.0
"""Checks of what a caller passes. Each names the argument and what it was; none takes a value for its truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import ConfigError, TensorSlice
from weight_readers.devices import known_device, usable_device

__all__ = [
    "device_of",
    "flags",
    "function",
    "instance",
    "real_device",
    "short",
    "slices_by_name",
    "whole",
]

_NO_VALUES = (
    "weights have no values on the meta device: name a real device, or leave device= out; "
    "Checkpoint.tensors has the shapes and dtypes, and reads nothing for them"
)


def short(text: str, limit: int = 200) -> str:
    """``text`` as a message shows it: cut where it is long, with its true length."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def shown(value: object) -> str:
    return short(repr(value), 100)


def instance(name: str, value: object, kind: type[Any], said: str, *, or_none: bool = False) -> None:
    """``said`` is what it must be, in words."""
    if not (isinstance(value, kind) or (or_none and value is None)):
        raise TypeError(f"{name} must be {said}{' or None' if or_none else ''}, not {shown(value)}")


def flags(**given: object) -> None:
    for name, value in given.items():
        instance(name, value, bool, "True or False")


def whole(name: str, value: object, *, least: int | None = None, most: int | None = None) -> None:
    """None passes: the caller did not give it."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        limit = "" if least is None else f" of at least {least}"
        raise TypeError(f"{name} must be a whole number{limit}, not {shown(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, not {shown(value)}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, not {shown(value)}")


def function(name: str, value: object, of: str) -> None:
    """None passes. ``of`` is what it is called with, and why."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function of {of}, not {shown(value)}")


def slices_by_name(slices: object) -> None:
    if slices is None:
        return
    instance("slices", slices, Mapping, "a mapping of tensor names to TensorSlice", or_none=True)
    assert isinstance(slices, Mapping)  # noqa: S101 - for mypy: said in the line above
    for name, part in slices.items():
        instance("a name in slices", name, str, "a str")
        for each in part if isinstance(part, tuple) else (part,):
            instance(f"slices[{shown(name)}]", each, TensorSlice, "a TensorSlice or a tuple of them")


def real_device(device: object, *, source: str | None = None) -> str:
    """The name of a device that torch knows, here or elsewhere. Raises ConfigError, for meta too.

    ``source`` is where it was given, where that is no argument.
    """
    import torch

    found = known_device(device, torch, source=source)
    if found.type == "meta":
        raise ConfigError(_NO_VALUES, option="device", source=source)
    return str(found)


def device_of(device: object, *, source: str | None = None) -> str:
    """`real_device`, where it can be used here. Raises ConfigError with those that there are."""
    import torch

    real_device(device, source=source)
    return str(usable_device(device, torch, source=source))
