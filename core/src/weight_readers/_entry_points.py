# SPDX-License-Identifier: Apache-2.0
"""Find the entry points of plugins, one distribution at a time.

``importlib_metadata.entry_points()`` fails for the whole process when one unrelated package has a nameless
``.dist-info`` or a malformed ``entry_points.txt``, and lets a stale ``.egg-info`` hide a healthy plugin of the
same name (it keeps the first distribution of each name). Here each distribution stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import importlib_metadata

from weight_readers._catalogue import normalized
from weight_readers.hookspecs import PROJECT_NAME


@dataclass(frozen=True, kw_only=True)
class Found:
    """One entry point of the group, and the distribution that declares it."""

    name: str
    entry_point: importlib_metadata.EntryPoint
    distribution: str
    version: str | None
    location: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version or '(no version)'} at {self.location}"


@dataclass(frozen=True, kw_only=True)
class Scan:
    """All that a walk over the distributions turned up.

    ``found`` maps a name to the entry points of *different* distributions that claim it. ``shadowed`` are further
    copies of a distribution that was found already (editable and a stale one), ``unreadable`` pairs a location
    with why its metadata could not be read.
    """

    found: dict[str, tuple[Found, ...]] = field(default_factory=dict)
    shadowed: tuple[Found, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()


def scan(distributions: Iterable[importlib_metadata.Distribution]) -> Scan:
    """Collect the group's entry points. Never raises for a broken distribution; imports no plugin."""
    found: dict[str, list[Found]] = {}
    shadowed: list[Found] = []
    unreadable: list[tuple[str, str]] = []
    for distribution in distributions:
        try:
            declared = _declared_by(distribution)
        except Exception as error:  # any metadata fault of any installed package
            unreadable.append((_location(distribution), f"{type(error).__name__}: {error}"))
            continue
        for item in declared:
            claims = found.setdefault(item.name, [])
            same = any(normalized(claim.distribution) == normalized(item.distribution) for claim in claims)
            (shadowed if same else claims).append(item)
    return Scan(
        found={name: tuple(found[name]) for name in sorted(found)},
        shadowed=tuple(shadowed),
        unreadable=tuple(unreadable),
    )


def _declared_by(distribution: importlib_metadata.Distribution) -> list[Found]:
    text = distribution.read_text("entry_points.txt")
    # A package that does not mention the group cannot harm us, however malformed its file is.
    if not text or PROJECT_NAME not in text:
        return []
    location = _location(distribution)
    metadata = distribution.metadata
    return [
        Found(
            name=entry_point.name,
            entry_point=entry_point,
            distribution=metadata["Name"] or location,
            version=metadata["Version"],
            location=location,
        )
        for entry_point in distribution.entry_points
        if entry_point.group == PROJECT_NAME
    ]


def _location(distribution: importlib_metadata.Distribution) -> str:
    path = getattr(distribution, "_path", None)  # the only handle on a distribution without a name
    return str(path) if path is not None else repr(distribution)
