# SPDX-License-Identifier: Apache-2.0
"""A plugin as the registry knows it: usable, or unusable with the cause."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weight_readers._blame import blamed, failure
from weight_readers._entry_points import Source
from weight_readers._text import NOT_CONTAINED, kind_of, rendered, said, shown
from weight_readers.capabilities import Declined, Feature, QuantMethodInfo, ReaderInfo, Request
from weight_readers.environment import Environment
from weight_readers.errors import PluginContractError, PluginLoadError, ReaderUnavailableError, WeightReadersError
from weight_readers.format_table import Claim
from weight_readers.policy import Rejected
from weight_readers.reader import ReadsInto, WeightReader

_READER_MEMBERS = ("info", "selection", "read_meta", "iter_weights")

_LONGEST_TRACE = 20_000


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A plugin that could not be loaded, and why."""

    source: Source
    error: ReaderUnavailableError

    @property
    def trace(self) -> str:
        """The traceback of what broke it, as text."""
        cause = self.error.__cause__ or self.error
        return rendered(_trace_of, cause, otherwise=said(cause), longest=_LONGEST_TRACE)

    def failure(self) -> ReaderUnavailableError:
        """A fresh copy of the error: one exception raised again and again gathers tracebacks and their frames."""
        fresh = copy.copy(self.error)
        fresh.__cause__ = self.error.__cause__
        return fresh


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A plugin that loaded and described itself."""

    source: Source
    info: ReaderInfo
    hooks: Any
    quant_methods: tuple[QuantMethodInfo, ...] = ()

    def claims(self) -> list[Claim]:
        """The formats that it declares."""
        return [Claim(format=f, reader=self.info.name, origin=self.source.origin) for f in self.info.file_formats]

    def missing_backend(self, has_module: Callable[[str], bool]) -> Rejected | None:
        """A rejection naming the first backend module that is not installed."""
        for requirement in self.info.requires:
            if not has_module(requirement.module):
                return Rejected(
                    code="backend-missing",
                    reason=f"needs the module {requirement.module!r}, which is not installed",
                    fix=f"Install it: pip install {requirement.distribution}",
                )
        return None

    def veto(self, request: Request, environment: Environment) -> Rejected | None:
        """The plugin's own check. A check that raises, or answers something else, counts as a veto that says so."""
        try:
            declined = self.hooks.weight_readers_check(request=request, environment=environment)
        except NOT_CONTAINED:
            raise
        except BaseException as error:
            return Rejected(code="check-failed", reason=f"its check raised {said(error)}")
        if declined is None:
            return None
        if not is_a(declined, Declined):
            return Rejected(code="check-failed", reason=f"its check returned {shown(declined)}, not Declined or None")
        return Rejected(code="vetoed", reason=declined.reason, fix=declined.fix)

    def create(self, options: Mapping[str, Any], *, of_caller: bool) -> WeightReader:
        """Make the reader with these options; ``of_caller`` says that at least one is the caller's.

        Raises PluginLoadError or PluginContractError. A ValueError or TypeError goes through where the caller gave
        options: it is about them. Where none were given it is the backend's (a numpy of another ABI raises one).
        """
        try:
            reader = self.hooks.weight_readers_create(options=dict(options))
        except (WeightReadersError, *NOT_CONTAINED):
            raise
        except BaseException as error:
            if of_caller and isinstance(error, (ValueError, TypeError)):
                raise
            raise failure(PluginLoadError, f"its backend raised {said(error)}", self.source) from error
        with blamed(PluginContractError, "looking at its reader raised", self.source):
            breach = _breach(reader, self.info.name)
        if breach is not None:
            raise failure(PluginContractError, f"its create hook returned {breach}", self.source)
        return reader  # type: ignore[no-any-return]


def is_a(answer: object, kind: type) -> bool:
    """isinstance() by the real class: it would ask the answer's ``__class__``, which may raise, or lie as mocks do."""
    return issubclass(type(answer), kind)


def _trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _breach(reader: object, name: str) -> str | None:
    """How ``reader`` breaks its protocol; None where it keeps it."""
    kind = kind_of(reader)
    if missing := [member for member in _READER_MEMBERS if not hasattr(reader, member)]:
        return f"{kind}, which lacks {', '.join(missing)}"
    info = getattr(reader, "info", None)
    if not isinstance(info, ReaderInfo) or info.name != name:
        return f"{kind}, described as {shown(info)}"
    if Feature.READ_INTO in info.features and not isinstance(reader, ReadsInto):
        return f"{kind}, which declares read_into and lacks it"
    return None
