# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with what a caller gives. The tree is drawn in `weight_readers.errors`."""

from __future__ import annotations

from collections.abc import Iterable

from weight_readers._error import WeightReadersError


class ConfigError(WeightReadersError, ValueError, TypeError):
    """An option that nobody has, that is of another kind or out of range, or that excludes another one.

    Both a ValueError and a TypeError: a file, a variable and a command line have no types to tell these apart.
    ``option`` is its name and ``source`` where it was given, as far as they are known.
    """

    def __init__(
        self, what: str, *, option: str | None = None, source: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what, fix=fix)
        self.option = option
        self.source = source


class TargetMismatchError(WeightReadersError, ValueError):
    """The checkpoint and the module or mapping it is loaded into do not match; nothing was written.

    ``missing`` are names the target wants and the checkpoint lacks, ``unexpected`` names it has and the
    target lacks, ``shapes`` and ``dtypes`` are ``(name, in the checkpoint, in the target)``.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str | None = None,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        shapes: Iterable[tuple[str, str, str]] = (),
        dtypes: Iterable[tuple[str, str, str]] = (),
    ) -> None:
        super().__init__(what, fix=fix)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.shapes = tuple(shapes)
        self.dtypes = tuple(dtypes)
