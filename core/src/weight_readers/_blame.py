# SPDX-License-Identifier: Apache-2.0
"""Errors that name the plugin they are about, whatever was raised in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weight_readers import _catalogue
from weight_readers._entry_points import Source
from weight_readers._text import NOT_CONTAINED, said
from weight_readers.errors import PluginLoadError, ReaderUnavailableError


def failure(
    kind: type[ReaderUnavailableError], what: str, source: Source, *, fix: str | None = None
) -> ReaderUnavailableError:
    """An error about one plugin, naming its distribution, and the command that mends most of its kind."""
    owner = f" of {source.origin}" if source.distribution else ""
    if fix is None and source.distribution is not None:
        fix = _mend(kind, source.distribution)
    return kind(
        f"reader {source.name!r}{owner} is broken: {what}",
        name=source.name,
        reason=what,
        fix=fix,
        code="broken",
        distribution=source.distribution,
    )


def _mend(kind: type[ReaderUnavailableError], distribution: str) -> str:
    """The command for a user of the plugin; its author, who has it installed from a folder, mends the folder."""
    if (folder := _catalogue.installed_from(distribution)) is not None:
        return f"Mend it in {folder}, from which it was installed, or remove it: pip uninstall {distribution}"
    reinstall = "--force-reinstall" if issubclass(kind, PluginLoadError) else "--upgrade"
    return f"Mend or remove it: pip install {reinstall} {distribution}"


@contextmanager
def blamed(kind: type[ReaderUnavailableError], what: str, source: Source) -> Iterator[None]:
    """Whatever is raised inside is an error of that ``kind`` about one plugin; ``what`` is said before the cause."""
    try:
        yield
    except NOT_CONTAINED:
        raise
    except BaseException as error:
        raise failure(kind, f"{what} {said(error)}", source) from error
