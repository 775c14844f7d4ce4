# SPDX-License-Identifier: Apache-2.0
"""Reading that still goes on when the program ends is ended before the interpreter takes itself down.

A generator that rests then would be closed when threads cannot run any more, and wait for its own for ever.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import cache

_going_on: dict[int, Callable[[], object]] = {}
"""By ``id`` of what reads. One function for all: `atexit` keeps a place for each that was ever registered."""


def begun(reading: object, end: Callable[[], object]) -> None:
    """Have ``end`` called where the program ends before `ended` is told."""
    _at_exit()
    _going_on[id(reading)] = end


def ended(reading: object) -> None:
    """Forget it."""
    _going_on.pop(id(reading), None)


@cache
def _at_exit() -> None:
    atexit.register(_end_all)


def _end_all() -> None:
    for end in list(_going_on.values()):
        end()
