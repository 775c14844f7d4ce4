# SPDX-License-Identifier: Apache-2.0
"""The commands about what is installed, and that look at no checkpoint: ``list``, ``doctor``, ``new-plugin``."""

from __future__ import annotations

import sys

import click

import weight_readers
from weight_readers_loader.commands import options, output


@click.command("list")
@options.as_json
@output.reports_errors
def list_(as_json: bool) -> None:
    """List the installed readers, and those that are installed and cannot be used."""
    report = weight_readers.registry_report()
    if as_json:
        output.as_json(True, {k: v for k, v in report.items() if k != "schema"})
        return
    from weight_readers_loader.commands import views

    views.readers(report)


@click.command()
@options.as_json
@output.reports_errors
def doctor(as_json: bool) -> None:
    """Examine the installation: versions, readers, what is broken and why, and what can be installed.

    Ends with 1 where something that is installed cannot work; a reader that was disabled on purpose can.
    """
    from weight_readers_loader.commands import doctor as command

    found = command.examine()
    ok = found.pop("ok")
    if as_json:
        output.as_json(ok, found)
    else:
        for line in command.lines(found, ok=ok):
            output.text(line)
    sys.exit(0 if ok else 1)


@click.command("new-plugin")
@click.argument("name")
@click.option("--folder", metavar="DEST", help="Where to; default: NAME-reader in this folder. Must not exist.")
@options.as_json
@output.reports_errors
def new_plugin(name: str, folder: str | None, as_json: bool) -> None:
    """Write a reader plugin called NAME: a small format of its own, and the contract's tests, which pass as written."""
    from weight_readers_loader.commands import new_plugin as command

    written = command.write(name, folder)
    if as_json:
        output.as_json(True, {"written": [str(path) for path in written]})
        return
    for line in command.lines(written):
        output.text(line)
