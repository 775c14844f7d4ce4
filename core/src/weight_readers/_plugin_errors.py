# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with what is installed. The tree is drawn in `weight_readers.errors`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from weight_readers._error import WeightReadersError

if TYPE_CHECKING:
    from weight_readers.selection import Selection


class DuplicateReaderError(WeightReadersError, LookupError):
    """Two distributions register one reader (or quant method) ``name``: neither is used."""

    def __init__(self, name: str, *, distributions: Sequence[str], fix: str | None = None) -> None:
        owners = " and ".join(distributions)
        super().__init__(
            f"the name {name!r} is registered by more than one distribution: {owners}",
            fix=fix or "Uninstall all but one of them",
        )
        self.name = name
        self.distributions = tuple(distributions)


class FormatConflictError(WeightReadersError, LookupError):
    """Two formats claim what a file is told by, or one format is declared in two ways; ``claims`` says by whom."""

    def __init__(self, what: str, *, claims: Iterable[str], fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.claims = tuple(claims)


class ReaderUnavailableError(WeightReadersError, ImportError):
    """Reader ``name`` (a reader, not a module as in other ImportErrors) is known and cannot be used here.

    ``reason`` says why without naming the reader, ``code`` is that in machine-readable form (a code of
    `Rejected`), and ``selection`` is the whole outcome, where a selection led here.
    """

    def __init__(
        self,
        what: str,
        *,
        name: str,
        reason: str | None = None,
        fix: str | None = None,
        code: str | None = None,
        distribution: str | None = None,
        selection: Selection | None = None,
    ) -> None:
        super().__init__(what, fix=fix)
        self.name: str = name
        self.reason = what if reason is None else reason
        self.code = code
        self.distribution = distribution
        self.selection = selection


class PluginLoadError(ReaderUnavailableError):
    """The plugin (or the backend behind it) is installed and raises when it is imported."""


class PluginContractError(ReaderUnavailableError):
    """The plugin imports, and does not keep the contract of the hooks."""


class PluginVersionError(ReaderUnavailableError):
    """The plugin was written for an API version that this core does not speak."""
