# SPDX-License-Identifier: Apache-2.0
"""Objects of plugins put into text. Their ``__str__`` and ``__repr__`` are foreign code that may raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOT_CONTAINED = (KeyboardInterrupt, GeneratorExit)
"""What foreign code may raise and is let through: a person's wish to stop, and Python's own way to end a generator.

All else is the plugin's failure, and ends no listing: a SystemExit of a module that misses its licence, or an
exception derived from plain BaseException, as a panic of an extension written in Rust is.
"""

_LONGEST = 1000


def said(error: BaseException) -> str:
    """``ValueError: message``, whatever the exception's own ``__str__`` does."""
    message = rendered(str, error)
    return f"{kind_of(error)}: {message}" if message else kind_of(error)


def shown(value: object) -> str:
    """``repr(value)``, whatever the value's own ``__repr__`` does."""
    return rendered(repr, value, otherwise=f"<unprintable {kind_of(value)}>")


def kind_of(value: object) -> str:
    """The name of the value's class. A metaclass may have its own idea of ``__name__``."""
    return rendered(lambda value: type(value).__name__, value)


def rendered(
    render: Callable[[Any], str], value: object, *, otherwise: str = "<unprintable>", longest: int = _LONGEST
) -> str:
    """``render(value)``, cut to ``longest`` characters; ``otherwise`` where that raises."""
    try:
        # A lone surrogate fails when it is printed. And of a subclass of str this makes a str.
        text = str.encode(render(value), "utf-8", "backslashreplace").decode()
    except NOT_CONTAINED:
        raise
    except BaseException:
        return otherwise
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
