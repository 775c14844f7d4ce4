# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an option, in one sentence: its name, where it was given, what it must be, what it was."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from weight_readers import ConfigError, WeightReadersError
from weight_readers.spelling import closest
from weight_readers_loader.arguments import shown
from weight_readers_loader.wording import some


def refusal(error: ValidationError, *, source: str, known: Collection[str]) -> ConfigError:
    """The error for what pydantic found; one sentence for each option that is wrong."""
    found = [_said(each, known) for each in error.errors(include_url=False)]
    first = error.errors(include_url=False)[0]["loc"]
    option = str(first[0]) if first else None
    unknown = [str(each["loc"][0]) for each in error.errors(include_url=False) if each["type"] == "extra_forbidden"]
    fix = hint(unknown[0], known) if len(found) == 1 and unknown else None
    return ConfigError(f"{source}: {'; '.join(found)}", option=option, source=source, fix=fix)


def hint(name: str, known: Collection[str]) -> str:
    """``Did you mean 'x'?``, or else all that there is."""
    close = closest(name, known)
    return f"Did you mean {close!r}?" if close else f"There is {some(sorted(known), 40)}"


def _said(each: Any, known: Collection[str]) -> str:
    place = ".".join(str(part) for part in each["loc"])
    if each["type"] == "extra_forbidden":
        return f"there is no option {place!r}"
    message = _WORDS.get(each["type"]) or each["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    limits = each.get("ctx") or {}
    return f"option {place!r} must be {message.format(**limits)}, not {shown(each['input'])}"


_WORDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "tuple_type": "a list of names",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "dict_type": "a table of names and values",
    "mapping_type": "a table of names and values",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""What pydantic says in words of its own."""


@contextmanager
def of_options(*given: object) -> Iterator[None]:
    """What a reader says of the options that it is made with is about the caller's words: a ConfigError."""
    try:
        yield
    except WeightReadersError:
        raise
    except (ValueError, TypeError) as error:
        if not any(given):
            raise
        raise ConfigError(str(error)) from error
