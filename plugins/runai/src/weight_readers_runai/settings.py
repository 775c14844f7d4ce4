# SPDX-License-Identifier: Apache-2.0
"""Where object storage is and how to talk to it: one object for the listing in Python and the native streaming.

An option wins over the environment. The Python client and the native library each read variables by rules of their
own, so what counts is decided here, once, and both are told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from weight_readers_runai.plugin import NAME

OPTION = f"option of reader {NAME!r}"


@dataclass(frozen=True, kw_only=True)
class StoreSettings(ABC):
    """What counts, and in ``origins`` where each value comes from; ``seen`` are names of variables, never values.

    ``ways`` are, in words for a person, how to name credentials and how to name the endpoint.
    """

    ways: ClassVar[tuple[str, str]]

    endpoint: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    seen: tuple[str, ...] = ()

    @abstractmethod
    def native(self) -> dict[str, str]:
        """The variables that make the native library do the same."""

    @abstractmethod
    def _said(self) -> dict[str, str]:
        """Each value in words."""

    def effective(self) -> dict[str, str]:
        """For people: each value and where it comes from."""
        said = self._said()
        return {name: f"{text} ({self.origins[name]})" if name in self.origins else text for name, text in said.items()}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.effective().items())


def first(
    what: str,
    option: str | None,
    names: tuple[str, ...],
    environment: Mapping[str, str],
    origins: dict[str, str],
    configured: tuple[str, str] | None = None,
) -> str | None:
    """The option, the first variable that is set, or what is ``configured`` (a value and where it stands).

    Where it came from goes to ``origins``.
    """
    if option is not None:
        origins[what] = OPTION
        return option
    found = next((name for name in names if environment.get(name)), None)
    value, origin = (environment[found], found) if found is not None else configured or (None, "")
    if value is not None:
        origins[what] = origin
    return value


def checked_endpoint(endpoint: str | None, origin: str) -> str | None:
    """Without a trailing slash.

    Raises ValueError naming option or variable for what is no http URL, and for one with a user and a password: an
    endpoint is shown.
    """
    if endpoint is None:
        return None
    if "@" in endpoint:
        raise ValueError(f"the endpoint ({origin}) must not hold a user or a password: it is shown. Give keys apart")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"endpoint {endpoint!r} ({origin}) must be a URL that begins with http:// or https://")
    return endpoint.rstrip("/")
