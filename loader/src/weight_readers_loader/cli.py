# SPDX-License-Identifier: Apache-2.0
"""The command ``weight-readers``. Thin: each command gathers plain data, and shows it as text or as JSON.

Nothing here imports torch before a command needs it, so that ``--help`` and ``list`` answer at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

import weight_readers
from weight_readers_loader.commands import config as flags
from weight_readers_loader.commands import options, output
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


@cli.command("list")
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

    supposed = elsewhere(what_if, given["device"])
    config = flags.config_of(given)
    found = command(
        lambda reader_options: _layout(reference, given, reader_options=reader_options),
        config=config,
        key_filter=options.key_filter(given["patterns"]),
        owned=given["owned"],
        into_existing=into_existing,
        elsewhere=supposed,
    )
    if as_json:
        output.as_json(found.error is None, {"reference": reference, **found.to_json()})
    else:
        for line in found.lines(reference):
            output.text(line)
    if found.error is not None:
        output.error(found.error)
        sys.exit(1)


@cli.command()
@options.reference
@options.which_files
@options.cache_dir
@options.as_json
@output.reports_errors
def inspect(reference: str, as_json: bool, **given: Any) -> None:
    """List the tensors of REF with dtypes, shapes and sizes. Lists what it can of a damaged one, and ends with 1."""
    options.check_ranks(given)
    from weight_readers_loader.commands import inspect as command
    from weight_readers_loader.commands import views

    cache_dir = flags.cache_dir_of(given)
    seen = command.inspect(_layout(reference, given, keep_problems=True), cache_dir=cache_dir)
    if as_json:
        output.as_json(seen.error is None, {"reference": reference, **seen.to_json()})
    else:
        views.tensors(seen.tensors)
        output.text(views.totals(seen.tensors, len(seen.layout.files)))
        for line in seen.remarks():
            output.text(line)
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
@options.as_json
@output.reports_errors
def verify(reference: str, strict: bool, sha256: bool, manifest: str | None, as_json: bool, **given: Any) -> None:
    """Check REF and list every problem: headers, shards, index; with --sha256 or --manifest the contents too.

    Ends with 0 where no problem was found. The output says whether contents were compared with anything: without
    --sha256 they are not, and that is no problem; with it, a file without a digest is one, and the code is 1.
    """
    options.check_ranks(given)
    from weight_readers_loader.commands.verify import verification

    result = verification(
        lambda: _layout(reference, given, keep_problems=True).brought(show_progress=True),
        strict=strict or None,
        contents=sha256 or manifest is not None,
        manifest=manifest,
        cache_dir=flags.cache_dir_of(given),
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
@options.as_json
@output.reports_errors
def fetch(reference: str, folder: str, overwrite: bool, as_json: bool, **given: Any) -> None:
    """Copy what lies beside the weights of REF (config, tokenizer, templates) to the folder DEST, and name the rest.

    Nothing in DEST is deleted, and nothing that is there is replaced without --overwrite.
    """
    options.check_ranks(given)
    from weight_readers_loader.side_files import SideFiles

    taken = SideFiles(_layout(reference, given, keep_problems=True)).copy_to(folder, overwrite=overwrite)
    if as_json:
        output.as_json(True, {"reference": reference, **taken.to_json()})
        return
    for line in taken.lines():
        output.text(line)


@cli.command()
@options.reference
@options.which_files
@options.which_reader
@click.option("--into", metavar="MODULE:CALLABLE", help="Fill the torch module (or mapping) that this returns.")
@click.option("--then", metavar="MODULE:CALLABLE", help="Call this with what was filled, and print what it returns.")
@click.option("--cast", is_flag=True, help="With --into: convert where dtypes differ.")
@click.option("--partial", is_flag=True, help="With --into: let names be missing or unexpected.")
@click.option("--aliases", is_flag=True, help="Also give tensors the other names that the files' metadata records.")
@click.option(
    "--verify",
    "--sha256",
    "verify",
    is_flag=True,
    help="Compare what is read with the digests of --manifest, or the names of HF cache blobs.",
)
@options.manifest
@options.report
@options.which_ranks
@click.option("--progress/--no-progress", default=True, help="Show progress on standard error.")
@options.as_json
@click.pass_context
@output.reports_errors
def load(context: click.Context, **given: Any) -> None:
    """Load REF through the reader that fits, touch every byte, and print the report.

    --into and --then name a callable of an installed module, or of one in the current folder. With --broadcast,
    --partition or --slices it is one of several ranks: torchrun --nproc-per-node 2 --no-python weight-readers load ...
    """
    options.check_load(given)
    how = options.how(given)
    config = flags.config_of(given)
    report_file = options.report_file(given.pop("report"))
    key_filter = options.key_filter(given.pop("patterns"))
    from weight_readers_loader.commands.supervise import supervise

    # In a process of its own: a mapped file that shrinks ends the process that touches it.
    note = supervise() if context.obj == "process" else lambda path: None
    options.check_device(config.value("device"))
    into = options.imported(given.pop("into"), "--into")
    then = options.imported(given.pop("then"), "--then")
    as_json = given.pop("as_json")
    given |= {"layout_arguments": {name: given.pop(name) for name in options.WHICH_FILES}, "key_filter": key_filter}
    given |= {"config": config, "into": into, "on_file": note}
    if how is not None:
        _load_together(how, given, then, report_file, as_json)
        return
    from weight_readers_loader.commands.load import load as command

    filled, report = command(**given)
    if report_file is not None:
        report_file.write(report.to_json())
    result = None if then is None else then(filled)
    if as_json:
        output.as_json(True, {"report": report.to_json(), "result": None if result is None else str(result)})
        return
    output.text(str(report))
    if result is not None:
        output.text(f"{'then:':<12}{result}")


def _load_together(how: str, given: dict[str, Any], then: Any, report_file: Any, as_json: bool) -> None:
    """One rank's part. What all ranks would say is said by the first."""
    from weight_readers_loader.commands import together

    given = {name: value for name, value in given.items() if name not in ("verify", "manifest")}
    try:
        result, report = together.load(how=how, then=then, **given)
    except Exception as failure:
        if not together.speaks_of(failure):
            time.sleep(1)  # a launcher ends all ranks when one does: the first is to say it before
            sys.exit(1)
        raise
    if not together.is_first():
        return
    if report_file is not None:
        report_file.write(report.to_json())
    if as_json:
        output.as_json(True, {"report": report.to_json(), "result": None if result is None else str(result)})
        return
    output.text(str(report))
    if result is not None:
        output.text(f"{'then:':<12}{result}")


@cli.command()
@options.reference
@options.which_files
@click.option("--reader", "readers", multiple=True, help="Only this reader; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Loads of each reader.")
@click.option("--cold", is_flag=True, help="Drop the files from the page cache before each load.")
@click.option("--into-existing", is_flag=True, help="Fill tensors that exist: takes memory for the whole model.")
@click.option("--owned", is_flag=True, help="Tensors that do not depend on the files.")
@options.as_json
@click.pass_context
@output.reports_errors
def bench(context: click.Context, reference: str, as_json: bool, **given: Any) -> None:
    """Time the installed readers on REF, in turns, beside bare parallel reads of the same bytes."""
    options.check_ranks(given)
    from weight_readers_loader.commands.supervise import supervise

    # In a process of its own: a mapped file that shrinks ends the process that touches it.
    note = supervise() if context.obj == "process" else lambda path: None
    from weight_readers_loader.commands.bench import bench as command

    found = command(
        reference,
        layout_arguments={name: given.pop(name) for name in options.WHICH_FILES},
        on_file=note,
        say=lambda line: click.echo(line, err=True),
        **given,
    )
    if as_json:
        output.as_json(True, found.to_json())
        return
    for line in found.lines():
        output.text(line)


@cli.command()
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
