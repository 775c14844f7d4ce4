# SPDX-License-Identifier: Apache-2.0
"""Arguments of the public calls, refused by name and value before anything is scanned or judged."""

from __future__ import annotations

from weight_readers._text import shown
from weight_readers.capabilities import Request
from weight_readers.environment import Environment

_KINDS: dict[str, tuple[type, str]] = {
    "request": (Request, "a Request"),
    "requested": (str, "the name of a reader"),
    "strict": (bool, "True, False"),
    "needs_key_filter": (bool, "True, False"),
    "environment": (Environment, "an Environment"),
}


def check_arguments(**arguments: object) -> None:
    """Raise TypeError for an argument of another type. None is "not given" for each of them.

    A truth value would do for none: ``strict="no"`` must not forbid what it means to allow.
    """
    for name, value in arguments.items():
        kind, words = _KINDS[name]
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} must be {words} or None, not {shown(value)}")


def check_name(name: object) -> None:
    """Raise TypeError for a reader's name that is no text."""
    if not isinstance(name, str):
        raise TypeError(f"name must be the name of a reader, not {shown(name)}")
