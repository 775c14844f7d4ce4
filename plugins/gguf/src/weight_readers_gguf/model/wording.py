# SPDX-License-Identifier: Apache-2.0
"""How counts, sizes and long lists of names are said."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def counted(number: int, noun: str) -> str:
    """``1 tensor``, ``3 tensors``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Sequence[str], limit: int = 10) -> str:
    """The first names, and how many there are besides."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def size(nbytes: int) -> str:
    """Bytes for people, in binary units: ``1.5 GiB``."""
    value, unit = float(nbytes), 0
    while value >= 1000 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{nbytes} B"
