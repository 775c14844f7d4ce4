# SPDX-License-Identifier: Apache-2.0
"""The three environment variables, parsed. Arguments of the calls beat all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from weight_readers._warnings import warn_caller
from weight_readers.errors import ConfigError
from weight_readers.spelling import did_you_mean

DISABLE = "WEIGHT_READERS_DISABLE"
PREFER = "WEIGHT_READERS_PREFER"
STRICT = "WEIGHT_READERS_STRICT"

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``disable`` and ``prefer`` hold reader names (comma-separated in the variable); ``strict_text`` is raw."""

    disable: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    strict_text: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        return cls(
            disable=_names(environ, DISABLE), prefer=_names(environ, PREFER), strict_text=environ.get(STRICT, "")
        )

    def strict(self, argument: bool | None) -> bool:
        """Whether fallbacks are forbidden: by ``argument``, or by the variable where that is None.

        Raises ConfigError for a value of the variable that is neither true nor false. Only here, so that listings
        work under a bad value, and an argument beats even that.
        """
        if argument is not None:
            return argument
        value = self.strict_text.strip().lower()
        if value not in _TRUE | _FALSE:
            what = f"{STRICT} must be 1 or 0, not {self.strict_text!r}"
            raise ConfigError(what, option="strict", source=STRICT, fix=f"Set it to one of them, or unset {STRICT}")
        return value in _TRUE

    def to_json(self) -> dict[str, object]:
        return {DISABLE: list(self.disable), PREFER: list(self.prefer), STRICT: self.strict_text}

    def warn_of_unknown(self, known: Collection[str]) -> None:
        warn_of_unknown(DISABLE, self.disable, known)
        warn_of_unknown(PREFER, self.prefer, known)


def warn_of_unknown(where: str, names: Iterable[str], known: Collection[str]) -> None:
    """Warn of each name that no reader has: a typing error in a list of names would be ignored otherwise."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"Known: {sorted(known)}"
            warn_caller(UserWarning(f"{where} names {name!r}, which is no weight reader. {hint}"))


def _names(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in environ.get(variable, "").split(",") if name.strip())
