# SPDX-License-Identifier: Apache-2.0
"""The readers of this project, whether installed or not, and the commands that install them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import importlib_metadata

DISTRIBUTION = "weight-readers"


@dataclass(frozen=True, kw_only=True)
class KnownReader:
    """A reader that this project publishes: the extra of core that brings it, and the formats it reads."""

    extra: str
    formats: frozenset[str]


KNOWN_READERS: Mapping[str, KnownReader] = {
    "gguf": KnownReader(extra="gguf", formats=frozenset({"gguf"})),
    "pt": KnownReader(extra="pt", formats=frozenset({"pt"})),
    "runai_streamer": KnownReader(extra="runai", formats=frozenset({"safetensors"})),
    "safetensors": KnownReader(extra="mmap", formats=frozenset({"safetensors"})),
    "threaded": KnownReader(extra="threaded", formats=frozenset({"safetensors"})),
}

_REQUIREMENT = re.compile(r"""\s*(?P<name>[A-Za-z0-9._-]+).*;.*extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")

# Which reader to suggest first where several plugins read a format: the one that installs everywhere.
_FIRST_SUGGESTION = {"safetensors": "safetensors"}


def normalized(distribution: str) -> str:
    """PEP 503: the spelling under which two names mean one distribution."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def extras_of(requires: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Extra -> distributions, from the ``Requires-Dist`` lines of a distribution's metadata."""
    extras: dict[str, list[str]] = {}
    for line in requires:
        if match := _REQUIREMENT.match(line):
            extras.setdefault(match["extra"], []).append(normalized(match["name"]))
    return {extra: tuple(names) for extra, names in sorted(extras.items())}


def core_extras() -> dict[str, tuple[str, ...]]:
    """The extras of the installed core; empty where it has no metadata (a frozen app)."""
    try:
        return extras_of(importlib_metadata.requires(DISTRIBUTION) or ())
    except importlib_metadata.PackageNotFoundError:
        return {}


def core_version() -> str | None:
    try:
        return importlib_metadata.version(DISTRIBUTION)
    except importlib_metadata.PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def install_hint(reader: str) -> str | None:
    """How to install one of our readers; None for a name that is not ours."""
    known = KNOWN_READERS.get(reader)
    if known is None:
        return None
    if known.extra in core_extras():
        return f"Install it: {install_command(known.extra)}"
    return f"{DISTRIBUTION} {core_version() or 'here'} does not offer its plugin yet (no extra {known.extra!r})"


def format_hint(wanted: str | None) -> str | None:
    """How to install a reader for the format ``wanted`` (any format where None); None where no plugin of ours reads it."""
    names = [name for name, known in KNOWN_READERS.items() if wanted is None or wanted in known.formats]
    first = _FIRST_SUGGESTION.get(wanted or "safetensors")
    ordered = sorted(names, key=lambda name: (name != first, name))
    offered = [name for name in ordered if KNOWN_READERS[name].extra in core_extras()]
    return install_hint((offered or ordered)[0]) if ordered else None
