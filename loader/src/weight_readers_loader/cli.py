# SPDX-License-Identifier: Apache-2.0
"""The command ``weight-readers``. Thin: each command gathers plain data, and shows it as text or as JSON.

Exit codes: 0 done, 1 something is wrong with the checkpoint or the installation, 2 wrong usage, 130 interrupted.
Nothing here imports torch before a command needs it, so that ``--help`` and ``list`` answer at once.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

import weight_readers
from weight_readers import CheckpointError, WeightReadersError
from weight_readers_loader.commands import options

if TYPE_CHECKING:
    from weight_readers_loader.resolve.layouts import Layout

SCHEMA = 1
"""Number of the JSON outputs' schema; it grows when a field changes its meaning or goes away."""

F = Callable[..., Any]


def _reports_errors(command: F) -> F:
    """Errors become one paragraph on standard error (and a JSON object where that was asked for), and exit code 1."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (WeightReadersError, ValueError, TypeError, OSError, ImportError) as error:
            if kwargs.get("as_json"):
                _print_json(_command_name(), ok=False, errors=_error_json(error))
            raise click.ClickException(str(error)) from error

    return wrapped


def _error_json(error: BaseException) -> list[dict[str, Any]]:
    if isinstance(error, CheckpointError):
        return [problem.to_json() for problem in error.problems]
    return [{"error": type(error).__name__, "what": str(error), "fix": getattr(error, "fix", None)}]


def _command_name() -> str:
    return click.get_current_context().info_name or ""


def _print_json(command: str, **data: Any) -> None:
    click.echo(json.dumps({"schema": SCHEMA, "command": command, **data}, indent=2, ensure_ascii=True))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="weight-readers", prog_name="weight-readers")
def cli() -> None:
    """Read model weights with the reader that fits, and say which and why."""


@cli.command("list")
@options.as_json
@_reports_errors
def list_(as_json: bool) -> None:
    """List the installed readers, and those that are installed and cannot be used."""
    report = weight_readers.registry_report()
    if as_json:
        _print_json("list", **{k: v for k, v in report.items() if k != "schema"})
        return
    from weight_readers_loader.commands import views

    views.readers(report)


@cli.command()
@options.reference
@options.which_files
@options.which_reader
@click.option("--into-existing", is_flag=True, help="As if loading into tensors that exist already.")
@options.as_json
@_reports_errors
def explain(
    reference: str,
    reader: str | None,
    option: Sequence[str],
    patterns: Sequence[str],
    device: str,
    owned: bool,
    strict: bool,
    into_existing: bool,
    as_json: bool,
    **which: Any,
) -> None:
    """Say which reader would read REF, and why; and for each other one why not. Reads no tensor."""
    layout = _layout(reference, which)
    selection = weight_readers.explain_selection(
        requested=reader,
        needs_key_filter=bool(patterns),
        strict=strict or None,
        format=layout.format,
        schemes=frozenset({"file"}),
        device=device,
        kept_on_host=device == "cpu" and not into_existing,
        into_targets=into_existing,
        owned=owned,
        options=options.reader_options(option),
    )
    if as_json:
        _print_json("explain", reference=reference, files=list(layout.paths), selection=selection.to_json())
    else:
        click.echo(f"{reference}: {layout.format}, {len(layout.files)} file{'s' * (len(layout.files) != 1)}")
        click.echo(selection.explain())
    if selection.chosen is None:
        # The same words that a load would end with, the command that mends it included.
        weight_readers.select_weight_reader(request=selection.request, requested=reader, strict=strict or None)


@cli.command()
@options.reference
@options.which_files
@options.as_json
@_reports_errors
def inspect(
    reference: str,
    as_json: bool,
    **which: Any,
) -> None:
    """List the tensors of REF with dtypes, shapes and sizes. Lists what it can of a damaged file, and ends with 1."""
    from weight_readers_loader.commands import inspect as command
    from weight_readers_loader.commands import views

    seen = command.inspect(_layout(reference, which))
    if as_json:
        _print_json("inspect", reference=reference, ok=seen.error is None, **seen.to_json())
    else:
        views.tensors(seen.tensors)
        click.echo(views.totals(seen.tensors, len(seen.layout.files)))
        for line in seen.remarks():
            click.echo(line)
    if seen.error is not None:
        if not as_json:
            click.echo(f"Error: {seen.error}", err=True)
        sys.exit(1)


@cli.command()
@options.reference
@options.which_files
@click.option("--sha256", is_flag=True, help="Hash the files too, against --manifest or the names of HF cache blobs.")
@click.option(
    "--manifest", type=click.Path(exists=True), help="Digests: sha256sum's file, git-lfs pointers (a folder)."
)
@options.as_json
@_reports_errors
def verify(
    reference: str,
    sha256: bool,
    manifest: str | None,
    as_json: bool,
    **which: Any,
) -> None:
    """Check REF and list every problem: headers, shards, index; with --sha256 or --manifest the contents too."""
    from weight_readers_loader.commands.verify import verification

    result = verification(
        lambda: _layout(reference, which),
        contents=sha256 or manifest is not None,
        manifest=manifest,
    )
    if as_json:
        _print_json("verify", reference=reference, **result.to_json())
    else:
        for line in result.lines():
            click.echo(line)
        for problem in result.problems:
            click.echo(f"Error: {problem}", err=True)
    sys.exit(0 if result.ok else 1)


@cli.command()
@options.reference
@options.which_files
@options.which_reader
@click.option("--into", metavar="MODULE:CALLABLE", help="Fill the torch module (or mapping) that this returns.")
@click.option("--then", metavar="MODULE:CALLABLE", help="Call this with what was filled, and print what it returns.")
@click.option("--cast", is_flag=True, help="With --into: convert where dtypes differ.")
@click.option("--partial", is_flag=True, help="With --into: let names be missing or unexpected.")
@click.option("--sha256", is_flag=True, help="First compare the contents with their digests.")
@options.manifest
@click.option("--progress/--no-progress", default=True, help="Show progress on standard error.")
@options.as_json
@click.pass_context
@_reports_errors
def load(context: click.Context, **arguments: Any) -> Any:
    """Load REF through the reader that fits, touch every byte, and print the report."""
    from weight_readers_loader.commands.supervise import supervise

    # In a process of its own: a mapped file that shrinks ends the process that touches it.
    note = supervise() if context.obj == "process" else lambda path: None
    from weight_readers_loader.commands import load as command

    filled, report = command.load(
        layout_arguments={k: arguments[k] for k in ("use_format", "variant", "rank", "world_size")},
        key_filter=options.key_filter(arguments["patterns"]),
        reader_options=options.reader_options(arguments["option"]),
        into=options.imported(arguments["into"]),
        on_file=note,
        **{
            name: arguments[name]
            for name in (
                "reference",
                "reader",
                "device",
                "owned",
                "strict",
                "cast",
                "partial",
                "sha256",
                "manifest",
                "progress",
            )
        },
    )
    then = options.imported(arguments["then"])
    result = then(filled) if then is not None else None
    if arguments["as_json"]:
        _print_json("load", ok=True, report=report.to_json(), result=None if result is None else str(result))
    else:
        click.echo(str(report))
        if result is not None:
            click.echo(f"{'then:':<12}{result}")
    return filled


@cli.command()
@options.as_json
@_reports_errors
def doctor(as_json: bool) -> None:
    """Examine the installation: versions, readers, what is broken and why, and what can be installed."""
    from weight_readers_loader.commands import doctor as command

    found = command.examine()
    if as_json:
        _print_json("doctor", **found)
    else:
        for line in command.lines(found):
            click.echo(line)
    sys.exit(0 if found["ok"] else 1)


def _layout(reference: str, which: Mapping[str, Any]) -> Layout:
    from weight_readers_loader.resolve.layouts import resolve_layout
    from weight_readers_loader.resolve.references import locate, parse_reference

    return resolve_layout(locate(parse_reference(reference)), **which)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    # The place in our own code that a warning points at tells a user of the command nothing.
    click.echo(f"Warning: {message}", err=True)


def main() -> None:
    """The console script."""
    warnings.showwarning = _show_warning
    try:
        cli.main(standalone_mode=False, obj="process")
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted", err=True)
        sys.exit(130)
