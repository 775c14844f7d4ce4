# SPDX-License-Identifier: Apache-2.0
"""Checks of what a caller passes. Each names the argument and what it was; none takes a value for its truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import TensorSlice

__all__ = [
    "NO_VALUES",
    "device_of",
    "flags",
    "function",
    "instance",
    "named_device",
    "short",
    "slices_by_name",
    "whole",
]

NO_VALUES = (
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


def named_device(device: object) -> str:
    """The name of a device that torch knows, here or elsewhere. Raises ValueError."""
    import torch

    try:
        known = torch.device(device) if isinstance(device, (str, torch.device)) else None
    except RuntimeError as error:
        raise ValueError(_no_device(device)) from error
    if known is None or (known.type == "cpu" and known.index):  # torch takes any number of a CPU
        raise ValueError(_no_device(device))
    return str(known)


def device_of(device: object) -> str:
    """The name of a device that can be used here. Raises ValueError with those that there are, and for meta."""
    import torch

    name = named_device(device)
    if torch.device(name).type == "meta":
        raise ValueError(NO_VALUES)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"{_no_device(device)} ({short(str(error).partition(chr(10))[0])})") from error
    return name


def _no_device(device: object) -> str:
    import torch

    count = torch.cuda.device_count()
    here = ", ".join(["'cpu'", *(f"'cuda:{number}'" for number in range(count))])
    given = shown(str(device)) if isinstance(device, torch.device) else shown(device)
    return f"device={given} is no device that can be used here; there is {here}"
