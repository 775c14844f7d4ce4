# SPDX-License-Identifier: Apache-2.0
"""Another machine, said in facts: ``residency=0 fs=nfs budget=8GiB device=cuda``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from weight_readers import Environment
from weight_readers.environment import LOCAL_FILESYSTEMS, NETWORK_FILESYSTEMS, family
from weight_readers_loader.arguments import real_device
from weight_readers_loader.commands.what_if import OPTION
from weight_readers_loader.config.model import as_bytes
from weight_readers_loader.config.refusals import hint


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Facts in place of those of this machine. ``device`` is where the tensors would go."""

    facts: dict[str, Any]
    device: str | None = None

    def over(self, environment: Environment) -> Environment:
        return replace(environment, **self.facts)

    def told(self) -> list[str]:
        """The facts, as `Environment.facts` words them."""
        return [*Environment(**self.facts).facts(), *([f"device {self.device}"] if self.device else [])]


def elsewhere(words: Sequence[str], device: str | None = None) -> Elsewhere | None:
    """What ``NAME=VALUE`` words say; None for none. Raises BadParameter with the close match, the range or the kinds.

    device: what is asked for besides; UsageError where the words name one too.
    """
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise _bad(f"{word!r} is not NAME=VALUE")
        if name not in FACTS:
            raise _bad(f"there is no fact {name!r}. {hint(name, FACTS)}")
        if name in given:
            raise _bad(f"{name!r} is given twice")
        given[name] = value
    if device is not None and "device" in given:
        raise click.UsageError(f"{OPTION} device={given['device']} and --device {device} are one thing: give one")
    parsed = {name: _parsed(name, value) for name, value in given.items()}
    facts = {field: value for name, value in parsed.items() for field in FACTS[name].fields}
    return Elsewhere(facts=facts, device=parsed.get("device")) if given else None


def _parsed(name: str, value: str) -> Any:
    try:
        return FACTS[name].parse(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _bad(f"{name} must be {FACTS[name].kind}, not {value!r}") from error


def _bad(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint=OPTION)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """The ``fields`` of an Environment that a word stands for, and how its value is read."""

    fields: tuple[str, ...]
    kind: str
    parse: Callable[[str], Any]


def _fraction(value: str) -> float:
    number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    if not 0 <= number <= 1:
        raise ValueError(value)
    return number


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(value)
    return int(value)


def _size(value: str) -> int:
    found = as_bytes(value)
    if not isinstance(found, int):
        raise TypeError(value)
    return found


def _kind(value: str) -> str:
    if family(value) not in NETWORK_FILESYSTEMS | LOCAL_FILESYSTEMS:
        raise ValueError(value)
    return value


_KINDS = ", ".join(sorted(NETWORK_FILESYSTEMS | LOCAL_FILESYSTEMS))

FACTS = {
    "residency": Fact(fields=("page_cache_residency",), kind="a fraction from 0 to 1 or a percentage", parse=_fraction),
    "fs": Fact(fields=("filesystem",), kind=f"a file system that the policy knows ({_KINDS})", parse=_kind),
    # What is free here says nothing of a machine that has this to give.
    "budget": Fact(fields=("host_memory_budget", "host_memory_free"), kind="a size, as 8GiB", parse=_size),
    "cpus": Fact(fields=("cpus",), kind="a whole number of at least 1", parse=_count),
    "ranks": Fact(fields=("local_ranks",), kind="a whole number of at least 1", parse=_count),
    "device": Fact(fields=(), kind="a device that torch knows and that has memory", parse=real_device),
}
"""What can be said of another machine. ``device`` is the request's own."""
