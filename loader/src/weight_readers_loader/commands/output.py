# SPDX-License-Identifier: Apache-2.0
"""How a command ends: JSON or text on standard output, errors as one paragraph on standard error, an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, TextIO

import click

from weight_readers import CheckpointError, ConfigError, UnknownReaderError, WeightReadersError
from weight_readers_loader.wording import visible

SCHEMA = 1
"""Number of the JSON outputs' schema; it grows when a field changes its meaning or goes away."""

USAGE = 2
"""The exit code for what is wrong in the words of the user, whatever the checkpoint."""

CLOSED_PIPE = 128 + 13
"""What a shell reports of a process that wrote to a pipe which nobody reads any more."""

_EXPECTED = (WeightReadersError, OSError, ValueError, TypeError, ImportError, MemoryError)

_WORDS = (ConfigError, UnknownReaderError)
"""Errors of what was typed, set or configured, whatever the checkpoint and the installation."""

_STDOUT = f"{__name__}.stdout"
"""Where a context keeps the real standard output while a document is being made."""

F = Callable[..., Any]


def as_json(ok: bool, data: Mapping[str, Any]) -> None:
    """The one document of a command on standard output."""
    command = click.get_current_context().info_name or ""
    document = {"schema": SCHEMA, "command": command, "ok": ok, **data}
    stdout = click.get_current_context().meta.get(_STDOUT)
    click.echo(json.dumps(document, indent=2, ensure_ascii=True), file=stdout)


def text(line: str) -> None:
    """A line for people. Names come from files: what a terminal would act upon is shown as an escape."""
    click.echo("\n".join(visible(part) for part in line.split("\n")))


def error(what: object) -> None:
    """One paragraph on standard error."""
    lines = f"Error: {what}".split("\n")
    click.echo("\n".join(visible(part) for part in lines), err=True)


def reports_errors(command: F) -> F:
    """End a command that fails with its error on standard error, as JSON too where that was asked for, and code 1;
    with 2 where an option or the name of a reader is wrong in itself.

    An error that nobody foresaw keeps its traceback: it is a fault of this project or of a plugin.
    """

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        try:
            with _document_alone(bool(options.get("as_json"))):
                return command(*arguments, **options)
        except BrokenPipeError:
            _discard(sys.stdout)
            sys.exit(CLOSED_PIPE)
        except Exception as failure:
            if options.get("as_json") and not isinstance(failure, click.exceptions.Exit):
                as_json(False, {"errors": errors(failure)})
            if not isinstance(failure, _EXPECTED):
                raise
            error(_said(failure))
            sys.exit(USAGE if isinstance(failure, _WORDS) else 1)

    return wrapped


@contextlib.contextmanager
def _document_alone(wanted: bool) -> Iterator[None]:
    """With ``wanted``, what plugins print on the way goes to standard error: the document has the output to itself."""
    if not wanted:
        yield
        return
    click.get_current_context().meta[_STDOUT] = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        yield


def errors(failure: BaseException) -> list[dict[str, Any]]:
    """An error as plain data; one entry for each problem of a checkpoint."""
    if isinstance(failure, CheckpointError):
        return [problem.to_json() for problem in failure.problems]
    what = failure.message if isinstance(failure, click.ClickException) else _said(failure)
    return [{"error": type(failure).__name__, "what": what, "fix": getattr(failure, "fix", None)}]


def _said(failure: BaseException) -> str:
    if isinstance(failure, MemoryError):
        return f"out of memory. {failure}".strip()
    return str(failure) or type(failure).__name__


def run(group: click.Group, **settings: Any) -> int:
    """Run the command line and return its exit code; nothing is left in buffers that could fail later."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        _never_fail_to_encode(stream)
    try:
        code = _run(group, **settings)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        return CLOSED_PIPE
    return code


def _run(group: click.Group, **settings: Any) -> int:
    try:
        group.main(standalone_mode=False, **settings)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except click.ClickException as failure:
        failure.show()
        return failure.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted", err=True)
        return 130
    return 0


def _never_fail_to_encode(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a path need not be valid Unicode, and the terminal may not be UTF-8
        reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Let what is still in the buffer go nowhere, or the interpreter would complain of it at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    # The place in our own code that a warning points at tells a user of the command nothing.
    click.echo(f"Warning: {visible(str(message))}", err=True)
