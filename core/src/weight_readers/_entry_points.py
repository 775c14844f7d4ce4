# SPDX-License-Identifier: Apache-2.0
"""Find the entry points of plugins, one distribution at a time.

``importlib_metadata.entry_points()`` fails for the whole process when one unrelated package has a nameless
``.dist-info`` or a malformed ``entry_points.txt``, and lets a stale ``.egg-info`` hide a healthy plugin of the
same name (it keeps the first distribution of each name). Here each distribution stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import importlib_metadata

from weight_readers._catalogue import normalized
from weight_readers._text import NOT_CONTAINED, said, shown
from weight_readers.hookspecs import PROJECT_NAME


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a plugin comes from: an entry point of a distribution, or the caller, who has no distribution.

    ``load`` imports and returns the plugin, ``module`` is the module that it imports.
    """

    name: str
    load: Callable[[], object]
    module: str | None = None
    distribution: str | None = None
    version: str | None = None
    location: str | None = None

    @property
    def origin(self) -> str:
        """Distribution and version, for messages and listings."""
        return f"{self.distribution} {self.version or ''}".strip() if self.distribution else "Registry(plugins=…)"

    def __str__(self) -> str:
        return f"{self.origin} at {self.location}" if self.location else self.origin


@dataclass(frozen=True, kw_only=True)
class Scan:
    """All that a walk over the distributions turned up.

    ``sources`` maps a name to the entry points of *different* distributions that claim it, sorted, so that the
    order of ``sys.path`` decides nothing. ``shadowed`` are further copies of one distribution (editable and a
    stale one), ``unreadable`` pairs a location with why its metadata could not be read.
    """

    sources: dict[str, tuple[Source, ...]] = field(default_factory=dict)
    shadowed: tuple[Source, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()


def scan(distributions: Iterable[importlib_metadata.Distribution]) -> Scan:
    """Collect the group's entry points. Never raises for a broken distribution; imports no plugin."""
    copies: dict[tuple[str, str], list[Source]] = {}
    unreadable: list[tuple[str, str]] = []
    for distribution in _walk(distributions, unreadable):
        try:
            declared = _declared_by(distribution)
        except NOT_CONTAINED:
            raise
        except BaseException as error:  # any metadata fault of any installed package
            unreadable.append((_location(distribution), said(error)))
            continue
        for source in declared:
            copies.setdefault((source.name, normalized(str(source.distribution))), []).append(source)
    sources: dict[str, tuple[Source, ...]] = {}
    shadowed: list[Source] = []
    for (name, _), found in sorted(copies.items()):
        kept = min(found, key=_is_leftover)
        sources[name] = (*sources.get(name, ()), kept)
        shadowed += [source for source in found if source is not kept]
    return Scan(sources=sources, shadowed=tuple(shadowed), unreadable=tuple(unreadable))


def _walk(
    distributions: Iterable[importlib_metadata.Distribution], unreadable: list[tuple[str, str]]
) -> Iterator[importlib_metadata.Distribution]:
    try:
        yield from distributions
    except NOT_CONTAINED:
        raise
    except BaseException as error:  # a finder on sys.meta_path that fails ends the walk, and hides nobody found so far
        unreadable.append(("sys.meta_path", said(error)))


def _is_leftover(source: Source) -> bool:
    """pip writes .dist-info; of two copies an .egg-info is the stale one. Else the first on the path counts."""
    return not str(source.location).endswith(".dist-info")


def _declared_by(distribution: importlib_metadata.Distribution) -> list[Source]:
    text = distribution.read_text("entry_points.txt")
    # A package that does not mention the group cannot harm us, however malformed its file is.
    if not text or PROJECT_NAME not in text:
        return []
    entry_points = [ep for ep in distribution.entry_points if ep.group == PROJECT_NAME]
    location = _location(distribution)
    metadata = _metadata(distribution)
    return [
        Source(
            name=entry_point.name,
            load=entry_point.load,
            module=entry_point.value.partition(":")[0].partition("[")[0].strip(),
            distribution=metadata.get("Name") or location,
            version=metadata.get("Version"),
            location=location,
        )
        for entry_point in entry_points
    ]


def _metadata(distribution: importlib_metadata.Distribution) -> Any:
    try:
        return distribution.metadata or {}
    except Exception:  # a folder without METADATA: its entry points still count, under its path
        return {}


def _location(distribution: importlib_metadata.Distribution) -> str:
    path = getattr(distribution, "_path", None)  # the only handle on a distribution without a name
    return str(path) if path is not None else shown(distribution)
