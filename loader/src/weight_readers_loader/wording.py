# SPDX-License-Identifier: Apache-2.0
"""How counts, sizes and long lists of names are said, the same everywhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

NUMBERS = "dequantize='bfloat16' (--dequantize bfloat16) reads numbers"
"""What helps where packed weights do not fit."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def counted(number: int, noun: str) -> str:
    """``1 file``, ``3 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Sequence[str], limit: int = 10) -> str:
    """The first names, and how many there are besides; ``nothing`` for none."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + rest


def passing(argument: str, value: str) -> str:
    """What to do in Python, and on the command line: ``Pass variant='fp16' (--variant fp16)``."""
    flag = argument.removeprefix("use_").replace("_", "-")
    return f"Pass {argument}={value!r} (--{flag} {shlex.quote(value)})"


def size(nbytes: int) -> str:
    """Bytes for people, in binary units and three figures: ``1.50 GiB``."""
    value, unit = float(nbytes), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def visible(text: str) -> str:
    """``text`` with everything that a terminal would act upon, and not show, as an escape: names come from files."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
