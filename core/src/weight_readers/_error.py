# SPDX-License-Identifier: Apache-2.0
"""The base of all errors: what happened, what mends it, and a pickle that keeps every field."""

from __future__ import annotations

from typing import Any


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    # A class that is both a ValueError and an OSError is laid out as the latter, and only that one can make it.
    make = OSError.__new__ if issubclass(cls, OSError) else cls.__new__
    error = make(cls, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class Pickles:
    """Pickling by fields: BaseException's own way calls ``__init__`` with ``args`` and loses keywords."""

    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        # ImportError keeps ``name`` in a C slot, outside of __dict__.
        slots = {"name": self.name} if isinstance(self, ImportError) else {}
        return _rebuild, (type(self), self.args, {**slots, **self.__dict__})


class WeightReadersError(Pickles, Exception):
    """Base of every error raised on purpose by weight-readers and its plugins.

    ``what`` says what happened and to what; ``fix`` is the one command or change that mends it; ``rank`` is the
    rank on which it happened, where several load together.
    """

    what: str
    fix: str | None
    rank: int | None = None

    def __init__(self, what: str, *, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return self.what if self.fix is None else f"{self.what}. {self.fix}"
