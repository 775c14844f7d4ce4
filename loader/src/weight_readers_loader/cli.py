# SPDX-License-Identifier: Apache-2.0
"""The command ``weight-readers``. Thin: each command gathers plain data, and shows it as text or as JSON.

Nothing here imports torch before a command needs it, so that ``--help`` and ``list`` answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from weight_readers_loader.cli_installed import doctor, list_, new_plugin
from weight_readers_loader.cli_loads import bench, load
from weight_readers_loader.commands import config as flags
from weight_readers_loader.commands import options, output
from weight_readers_loader.commands.plot_file import PlotFile, plot
from weight_readers_loader.commands.what_if import WhatIf
from weight_readers_loader.commands.what_if import what_if as what_if_option

if TYPE_CHECKING:
    from weight_readers_loader.resolve import Layout


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="weight-readers", prog_name="weight-readers")
def cli() -> None:
    """Read model weights with the reader that fits, and say which and why.

    \b
    Exit codes:
      0    done
      1    something is wrong with the checkpoint or the installation
      2    the command line is wrong in itself; nothing was looked at
      130  interrupted (143: terminated)
      135  a mapped file shrank or its storage failed (128 + signal)
    """


@cli.command(cls=WhatIf)
@options.reference
@options.which_files
@options.which_reader
@click.option("--into-existing", is_flag=True, help="As if loading into tensors that exist already.")
@what_if_option
@options.as_json
@output.reports_errors
def explain(reference: str, as_json: bool, into_existing: bool, what_if: tuple[str, ...], **given: Any) -> None:
    """Say which reader would read REF, and why; and for each other one why not. Reads headers only.

    With --what-if for another machine: --what-if residency=0 fs=nfs budget=8GiB device=cuda.

    Ends with 1 where no reader fits.
    """
    options.check_ranks(given)
    from weight_readers_loader.commands.elsewhere import elsewhere
    from weight_readers_loader.commands.explain import explain as command
    from weight_readers_loader.resolve import scheme_of

    supposed = elsewhere(what_if, given["device"])
    config = flags.config_of(given)
    found = command(
        lambda reader_options: _layout(reference, given, reader_options=reader_options),
        scheme=scheme_of(reference),
        config=config,
        key_filter=options.key_filter(given["patterns"]),
        owned=given["owned"],
        into_existing=into_existing,
        elsewhere=supposed,
    )
    if as_json:
        output.as_json(found.error is None, {"reference": reference, **found.to_json()})
    else:
        from weight_readers_loader.commands import views

        views.explained(found, reference)
    if found.error is not None:
        output.error(found.error)
        sys.exit(1)


@cli.command()
@options.reference
@options.which_files
@options.cache_dir
@options.reader_option
@plot
@options.as_json
@output.reports_errors
def inspect(reference: str, as_json: bool, plot: PlotFile | None, **given: Any) -> None:
    """List the tensors of REF with dtypes, shapes and sizes. Lists what it can of a damaged one, and ends with 1."""
    options.check_ranks(given)
    from weight_readers_loader.commands import inspect as command
    from weight_readers_loader.commands import views

    reading = flags.reading_of(given, reference)
    layout = _layout(reference, given, reader_options=reading["options"], keep_problems=True)
    seen = command.inspect(layout, **reading)
    if plot is not None:
        from weight_readers_loader.commands import plots

        plot.draw(plots.tensors(seen.tensors, f"{reference}: {views.totals(seen.tensors, len(seen.layout.files))}"))
    if as_json:
        output.as_json(seen.error is None, {"reference": reference, **seen.to_json()})
    else:
        views.inspected(seen)
    if seen.error is not None:
        output.error(seen.error)
        sys.exit(1)


@cli.command()
@options.reference
@options.which_files
@options.strict
@click.option(
    "--sha256", is_flag=True, help="Hash the files too, against --manifest, HF cache blobs or what a store keeps."
)
@options.manifest
@options.cache_dir
@options.reader_option
@options.as_json
@output.reports_errors
def verify(reference: str, strict: bool, sha256: bool, manifest: str | None, as_json: bool, **given: Any) -> None:
    """Check REF and list every problem: headers, shards, index; with --sha256 or --manifest the contents too.

    Ends with 0 where no problem was found. The output says whether contents were compared with anything: without
    --sha256 they are not, and that is no problem; with it, a file without a digest is one, and the code is 1.
    """
    options.check_ranks(given)
    from weight_readers_loader.commands.verify import verification

    reading = flags.reading_of(given, reference)

    def resolve() -> Layout:
        layout = _layout(reference, given, reader_options=reading["options"], keep_problems=True)
        return layout.brought(show_progress=True)

    result = verification(
        resolve,
        strict=strict or None,
        contents=sha256 or manifest is not None,
        manifest=manifest,
        **reading,
    )
    if as_json:
        output.as_json(result.ok, {"reference": reference, **result.to_json()})
    else:
        for line in result.lines():
            output.text(line)
    for problem in filter(None, (*result.problems, result.unverified)):
        output.error(problem)
    sys.exit(0 if result.ok else 1)


@cli.command()
@options.reference
@click.argument("folder", metavar="DEST", type=click.Path(file_okay=False))
@options.which_files
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@options.reader_option
@options.as_json
@output.reports_errors
def fetch(reference: str, folder: str, overwrite: bool, as_json: bool, **given: Any) -> None:
    """Copy what lies beside the weights of REF (config, tokenizer, templates) to the folder DEST, and name the rest.

    Nothing in DEST is deleted, and nothing that is there is replaced without --overwrite.
    """
    options.check_ranks(given)
    from weight_readers_loader.side_files import SideFiles

    reader_options = flags.reading_of(given, reference)["options"]
    layout = _layout(reference, given, reader_options=reader_options, keep_problems=True)
    taken = SideFiles(layout).copy_to(folder, overwrite=overwrite)
    if as_json:
        output.as_json(True, {"reference": reference, **taken.to_json()})
        return
    for line in taken.lines():
        output.text(line)


for command in (list_, doctor, new_plugin, load, bench):
    cli.add_command(command)


def _layout(
    reference: str,
    given: Mapping[str, Any],
    *,
    keep_problems: bool = False,
    reader_options: Mapping[str, Any] | None = None,
) -> Layout:
    from weight_readers_loader.resolve import resolve

    which = {name: given[name] for name in options.WHICH_FILES}
    return resolve(reference, reader_options=reader_options, **which, keep_problems=keep_problems)


def main() -> None:
    """The console script."""
    sys.exit(output.run(cli, obj="process"))
