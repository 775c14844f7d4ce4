# SPDX-License-Identifier: Apache-2.0
"""Which known name a misspelt one may have meant: the same question wherever a name is refused."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that ``name`` is a misspelling of; None where nothing is close.

    Case, blanks around it, and ``-`` for ``_`` are no difference. ``cutoff`` is that of `difflib.get_close_matches`.
    """
    folded = {_folded(each): each for each in sorted(known, reverse=True)}
    matches = get_close_matches(_folded(name), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """``Did you mean 'x'?``, or None where nothing is close."""
    meant = closest(name, known)
    return f"Did you mean {meant!r}?" if meant else None


def _folded(name: str) -> str:
    return name.strip().lower().replace("-", "_")
