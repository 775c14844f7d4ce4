# SPDX-License-Identifier: Apache-2.0
"""All formats that are known here, and what a name and first bytes are by them. Pure: made of the claims alone."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weight_readers.errors import ConfigError, FormatConflictError
from weight_readers.formats import KNOWN_FORMATS, FileFormat

_OR = " or "  # no name of a format has a space


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A format, the reader that declares it, and where that comes from (``npz-reader 0.1.0``)."""

    format: FileFormat
    reader: str
    origin: str

    def __str__(self) -> str:
        return f"{self.format.name} (reader {self.reader!r}, {self.origin})"


_OURS = tuple(Claim(format=each, reader=each.name, origin="weight-readers") for each in KNOWN_FORMATS)
_OUR_NAMES = tuple(each.name for each in KNOWN_FORMATS)


class FormatTable:
    """The formats of this project and those that plugins declare.

    Where one suffix is claimed by two formats, or one format declared in two ways, whatever depends on it is a
    `FormatConflictError`; the rest goes on. Until then two formats that a file may be of go by ``"acme or npz"``.
    """

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._claims: dict[str, list[Claim]] = {each.format.name: [each] for each in _OURS}
        for claim in sorted(claims, key=lambda claim: (claim.format.name, claim.origin)):
            same = self._claims.setdefault(claim.format.name, [])
            if not any(claim.format.agrees(each.format) for each in same):
                same.append(claim)

    @property
    def names(self) -> tuple[str, ...]:
        """The formats of this project in the order in which a folder is read, then the others by name."""
        return tuple(self._claims)

    @cached_property
    def suffixes(self) -> Mapping[str, tuple[str, ...]]:
        """Suffix -> the formats that claim it."""
        found: dict[str, dict[str, None]] = {}
        for name, claims in self._claims.items():
            for suffix in (suffix for claim in claims for suffix in claim.format.suffixes):
                found.setdefault(suffix, {})[name] = None
        return {suffix: tuple(names) for suffix, names in found.items()}

    def rank(self, name: str) -> int:
        """The place of a format in the order in which a folder is read; formats of others share the last one.

        Two formats that a file may be of stand where the first of them does.
        """
        return min(_OUR_NAMES.index(each) if each in _OUR_NAMES else len(_OUR_NAMES) for each in name.split(_OR))

    def by_suffix(self, file_name: str) -> tuple[str, ...]:
        """The formats that claim the suffix of a name, in either case of letters."""
        return self.suffixes.get(os.path.splitext(file_name)[1].lower(), ())

    def by_content(self, head: bytes, named: Collection[str] = ()) -> tuple[str, ...]:
        """The formats that the first bytes are of: those with the longest signature that matches.

        What is ``named`` as a format of this project and begins as one is not of another one that a plugin declares:
        installing a plugin does not change what is read of the files that were there.
        """
        lengths = {name: max(each.format.match(head) for each in claims) for name, claims in self._claims.items()}
        if any(lengths[name] for name in _OUR_NAMES if name in named):
            lengths = {name: length for name, length in lengths.items() if name in named or name in _OUR_NAMES}
        longest = max(lengths.values())
        return tuple(name for name, length in lengths.items() if length == longest > 0)

    def named(self, file_name: str, *, asked: str | None = None) -> str | None:
        """The format that the suffix claims, the ``asked`` one of several; None for a suffix that nobody claims."""
        return one_of(self.by_suffix(file_name), asked)

    def require(self, name: str) -> FileFormat:
        """The format called ``name``.

        Raises FormatConflictError where ``name`` is two, or is declared in two ways; ConfigError where nobody has it.
        """
        names = name.split(_OR)
        if unknown := [each for each in names if each not in self._claims]:
            what = f"no installed reader declares the format {unknown[0]!r}; there are {list(self._claims)}"
            raise ConfigError(what, fix="Install its reader, and `weight-readers list` shows it")
        if len(names) > 1:
            raise self._of_suffix(names)
        claims = self._claims[name]
        if len(claims) > 1:
            raise FormatConflictError(
                f"the format {name!r} is declared in {len(claims)} ways: by {_all(claims)}",
                claims=map(str, claims),
                fix=f"Use one of these readers: WEIGHT_READERS_DISABLE={claims[-1].reader}, or uninstall one",
            )
        return claims[0].format

    def to_json(self) -> dict[str, Any]:
        """Name -> the declaration as JSON; of one that is declared in two ways the first."""
        return {name: claims[0].format.to_json() for name, claims in self._claims.items()}

    def conflicts(self) -> list[FormatConflictError]:
        """Each conflict that there is between declarations."""
        labels = dict.fromkeys(_OR.join(names) for names in self.suffixes.values() if len(names) > 1)
        found: list[FormatConflictError] = []
        for name in (*self._claims, *labels):
            try:
                self.require(name)
            except FormatConflictError as error:
                found.append(error)
        return found

    def _of_suffix(self, names: list[str]) -> FormatConflictError:
        claims = [claim for name in names for claim in self._claims[name]]
        shared = sorted(set(claims[0].format.suffixes).intersection(*(each.format.suffixes for each in claims[1:])))
        what = f"the suffix {', '.join(shared)}" if shared else "one kind of content"
        return FormatConflictError(
            f"{what} belongs to {len(names)} formats: {_all(claims)}",
            claims=map(str, claims),
            fix=f"Say which is meant: use_format={names[-1]!r} (--format {names[-1]}); "
            f"or do without one reader: WEIGHT_READERS_DISABLE={claims[-1].reader}",
        )


def one_of(names: tuple[str, ...], *preferred: str | None) -> str | None:
    """The first of ``preferred`` that is among the names; else the names as one, which `FormatTable.require` refuses
    where they are several; None where there is none."""
    chosen = next((name for name in preferred if name in names), None)
    return chosen or _OR.join(names) or None


def _all(claims: Iterable[Claim]) -> str:
    return " and ".join(map(str, claims))
