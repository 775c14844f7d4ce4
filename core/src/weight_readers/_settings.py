# SPDX-License-Identifier: Apache-2.0
"""The three environment variables, parsed. Arguments of the calls beat all of them."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass

DISABLE = "WEIGHT_READERS_DISABLE"
PREFER = "WEIGHT_READERS_PREFER"
STRICT = "WEIGHT_READERS_STRICT"

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``disable`` and ``prefer`` hold reader names (comma-separated in the variable), ``strict`` forbids fallbacks."""

    disable: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    strict: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Raises ValueError for a value of ``WEIGHT_READERS_STRICT`` that is neither true nor false."""
        return cls(disable=_names(environ, DISABLE), prefer=_names(environ, PREFER), strict=_flag(environ, STRICT))

    def warn_of_unknown(self, known: Collection[str]) -> None:
        for variable, names in ((DISABLE, self.disable), (PREFER, self.prefer)):
            for name in names:
                if name not in known:
                    hint = close_match(name, known) or f"Known: {sorted(known)}"
                    warnings.warn(f"{variable} names {name!r}, which is no weight reader. {hint}", stacklevel=4)


def _names(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in environ.get(variable, "").split(",") if name.strip())


def _flag(environ: Mapping[str, str], variable: str) -> bool:
    value = environ.get(variable, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise ValueError(f"{variable} must be 1 or 0, not {environ[variable]!r}")
    return value in _TRUE


def close_match(name: str, known: Collection[str]) -> str | None:
    """``Did you mean 'x'?``, or None where nothing is close."""
    matches = difflib.get_close_matches(name, sorted(known), n=1)
    return f"Did you mean {matches[0]!r}?" if matches else None
