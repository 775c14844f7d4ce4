# SPDX-License-Identifier: Apache-2.0
"""The readers of this project, whether installed or not, and the commands that install them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import importlib_metadata

DISTRIBUTION = "weight-readers"


@dataclass(frozen=True, kw_only=True)
class KnownReader:
    """A reader that this project publishes: the extra of core that brings it, and what it reads.

    ``stores`` are the schemes beyond local files, each with the requirement that brings the reader with what it needs
    there: the extra of core alone does not.
    """

    extra: str
    formats: frozenset[str]
    stores: Mapping[str, str] = field(default_factory=dict)

    @property
    def distribution(self) -> str:
        return f"{DISTRIBUTION}-{self.extra}"

    @property
    def schemes(self) -> frozenset[str]:
        return frozenset({"file", *self.stores})

    def requirements(self, schemes: Collection[str] = ()) -> list[str]:
        """What to install to read in ``schemes``: local files without any."""
        return sorted({self.stores[each] for each in schemes if each in self.stores}) or [_extra_of_core(self.extra)]


KNOWN_READERS: Mapping[str, KnownReader] = {
    # In the order in which they are suggested where several read a format: first what installs everywhere.
    "safetensors": KnownReader(extra="mmap", formats=frozenset({"safetensors"})),
    "threaded": KnownReader(extra="threaded", formats=frozenset({"safetensors"})),
    "runai_streamer": KnownReader(
        extra="runai",
        formats=frozenset({"safetensors"}),
        stores={"s3": "weight-readers-runai[s3]", "gs": "weight-readers-runai[gcs]"},
    ),
    "gguf": KnownReader(extra="gguf", formats=frozenset({"gguf"})),
    "pt": KnownReader(extra="pt", formats=frozenset({"pt"})),
}

_REQUIREMENT = re.compile(r"""\s*(?P<name>[A-Za-z0-9._-]+).*;.*extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")


def normalized(distribution: str) -> str:
    """PEP 503: the spelling under which two names mean one distribution."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def is_ours(reader: str, distribution: str | None) -> bool:
    """Whether this project publishes the reader: by its name, and by its distribution where it is of one."""
    known = KNOWN_READERS.get(reader)
    return known is not None and (distribution is None or normalized(distribution) == known.distribution)


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


def installed_version(distribution: str) -> str | None:
    """The version by the metadata; None where there is none."""
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None


def installed_from(distribution: str) -> str | None:
    """The folder that pip installed it from, editable or not; None for a release (PEP 610)."""
    try:
        text = importlib_metadata.distribution(distribution).read_text("direct_url.json")
        url = str(json.loads(text or "{}").get("url"))
    except (importlib_metadata.PackageNotFoundError, ValueError, AttributeError):  # not there, or not in its form
        return None
    is_folder = url.startswith("file:") and not url.endswith((".whl", ".tar.gz"))
    return unquote(urlsplit(url).path) if is_folder else None


def install_command(extra: str) -> str:
    return _pip_install([_extra_of_core(extra)])


def _extra_of_core(extra: str) -> str:
    return f"{DISTRIBUTION}[{extra}]"


def _pip_install(requirements: Iterable[str]) -> str:
    quoted = (f'"{each}"' for each in requirements)
    return f"pip install {' '.join(quoted)}"


def install_hint(reader: str, schemes: Collection[str] = ()) -> str | None:
    """How to install one of our readers, with what it needs in ``schemes``; None for a name that is not ours.

    Names a command only where the installed core has the extra: a command that does not exist mends nothing.
    """
    known = KNOWN_READERS.get(reader)
    if known is None:
        return None
    if known.extra in core_extras():
        return f"Install it: {_pip_install(known.requirements(schemes))}"
    version = installed_version(DISTRIBUTION)
    if version is None:
        return f"This application was built without it; pass it as Registry(plugins={{{reader!r}: …}})"
    return f"{DISTRIBUTION} {version} has no plugin for it yet (no extra {known.extra!r})"


def suggestion(wanted: str | None, schemes: Collection[str] = (), *, installed: Collection[str] = ()) -> str | None:
    """How to install a reader of ours for a format (any where None) and schemes, out of those not ``installed``.

    None where no plugin of ours would help.
    """
    fitting = [
        name
        for name, known in KNOWN_READERS.items()
        if name not in installed and (wanted is None or wanted in known.formats) and known.schemes.issuperset(schemes)
    ]
    extras = core_extras()
    offered = [name for name in fitting if KNOWN_READERS[name].extra in extras]
    return install_hint((offered or fitting)[0], schemes) if fitting else None


def missing_extras() -> dict[str, dict[str, object]]:
    """Extra -> the distributions of it that are not installed, and the command that installs them."""
    missing: dict[str, dict[str, object]] = {}
    for extra, distributions in core_extras().items():
        absent = [name for name in distributions if installed_version(name) is None]
        if absent:
            missing[extra] = {"distributions": absent, "install": install_command(extra)}
    return missing
