# SPDX-License-Identifier: Apache-2.0
"""The two commands that read all bytes, ``load`` and ``bench``, in a process of their own: see `supervise`."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from weight_readers_loader.arguments import device_of
from weight_readers_loader.commands import config as flags
from weight_readers_loader.commands import options, output
from weight_readers_loader.commands.plot_file import PlotFile, plot

if TYPE_CHECKING:
    from weight_readers_loader.commands.report_file import ReportFile
    from weight_readers_loader.distributed import DistributedReport
    from weight_readers_loader.report import LoadReport

    Report = LoadReport | DistributedReport


@click.command()
@options.reference
@options.which_files
@options.which_reader
@click.option("--into", metavar="MODULE:CALLABLE", help="Fill the torch module (or mapping) that this returns.")
@click.option("--then", metavar="MODULE:CALLABLE", help="Call this with what was filled, and print what it returns.")
@click.option("--cast", is_flag=True, help="With --into: convert where dtypes differ.")
@click.option("--partial", is_flag=True, help="With --into: let names be missing or unexpected.")
@click.option("--aliases", is_flag=True, help="Also give tensors the other names that the files' metadata records.")
@options.report
@options.which_ranks
@click.option(
    "--progress/--no-progress", default=None, help="Show progress on standard error.  [default: on a terminal]"
)
@options.as_json
@click.pass_context
@output.reports_errors
def load(context: click.Context, **given: Any) -> None:
    """Load REF through the reader that fits, touch every byte, and print the report.

    --into and --then name a callable of an installed module, or of one in the current folder. With --broadcast,
    --partition or --slices it is one of several ranks: torchrun --nproc-per-node 2 --no-python weight-readers load ...
    """
    options.check_load(given)
    config = flags.config_of(given)
    how = options.how(given, config)
    report_file = options.report_file(given.pop("report"))
    key_filter = options.key_filter(given.pop("patterns"))
    from weight_readers_loader.commands.supervise import supervise

    what = "the load" if how is None else f"the load of rank {os.environ.get('RANK', '?')}"
    note = supervise(what) if context.obj == "process" else lambda path: None
    if (device := config.setting("device")) is not None:
        device_of(device.value, source=device.source)
    into = options.imported(given.pop("into"), "--into")
    then = options.imported(given.pop("then"), "--then")
    as_json = given.pop("as_json")
    if given["progress"] is None:
        given["progress"] = sys.stderr.isatty()
    given |= {"layout_arguments": {name: given.pop(name) for name in options.WHICH_FILES}, "key_filter": key_filter}
    given |= {"config": config, "into": into, "on_file": note}
    if how is not None:
        _load_together(how, given, then, report_file, as_json)
        return
    from weight_readers_loader.commands.load import load as command

    filled, report = command(**given)
    if report_file is not None:  # before the user's own code has its turn
        report_file.write(report.to_json())
    _tell(report, None if then is None else then(filled), as_json=as_json)


def _load_together(how: str, given: dict[str, Any], then: Any, report_file: ReportFile | None, as_json: bool) -> None:
    """One rank's part. What all ranks would say is said by the first."""
    from weight_readers_loader.commands import together

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
    _tell(report, result, as_json=as_json)


def _tell(report: Report, result: object, *, as_json: bool) -> None:
    """Print ``report``, and what the user's own code returned where that is not None."""
    said = None if result is None else str(result)
    if as_json:
        output.as_json(True, {"report": report.to_json(), "result": said})
        return
    output.text(str(report))
    if said is not None:
        output.text(f"{'then:':<12}{said}")


@click.command()
@options.reference
@options.which_files
@click.option("--reader", "readers", multiple=True, help="Only this reader; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Loads of each reader.")
@click.option("--cold", is_flag=True, help="Drop the files from the page cache before each load.")
@click.option("--into-existing", is_flag=True, help="Fill tensors that exist: takes memory for the whole model.")
@click.option("--owned", is_flag=True, help="Tensors that do not depend on the files.")
@options.reader_option
@plot
@options.as_json
@click.pass_context
@output.reports_errors
def bench(context: click.Context, reference: str, as_json: bool, plot: PlotFile | None, **given: Any) -> None:
    """Time the installed readers on REF, in turns, beside bare parallel reads of the same bytes."""
    options.check_ranks(given)
    from weight_readers_loader.commands.supervise import supervise

    note = supervise() if context.obj == "process" else lambda path: None
    from weight_readers_loader.commands.bench import bench as command

    found = command(
        reference,
        layout_arguments={name: given.pop(name) for name in options.WHICH_FILES},
        options=flags.reading_of(given, reference)["options"],
        on_file=note,
        say=lambda line: click.echo(line, err=True),
        **given,
    )
    if plot is not None:
        from weight_readers_loader.commands import plots

        plot.draw(plots.bench(found))
    if as_json:
        output.as_json(True, found.to_json())
        return
    for line in found.lines():
        output.text(line)
