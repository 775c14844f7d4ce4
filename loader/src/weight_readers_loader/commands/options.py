# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from weight_readers import ConfigError, FormatConflictError
from weight_readers_loader.commands.config import CACHE_DIR, FLAGS, MANIFEST, READER_OPTION
from weight_readers_loader.commands.report_file import ReportFile, cannot_write

if TYPE_CHECKING:
    from weight_readers_loader.config import LayeredConfig

F = Callable[..., Any]

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
reference = click.argument("reference", metavar="REF")
manifest = MANIFEST

report = click.option("--report", metavar="FILE", help="Write the report to this file too, as JSON.")


strict = click.option("--strict", is_flag=True, help="No fallback, and nothing that the index does not name.")


cache_dir = CACHE_DIR
reader_option = READER_OPTION


def _known_format(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The name of a format of this project or of an installed reader. Raises BadParameter for any other."""
    from weight_readers_loader.resolve.choices import check_format

    try:
        # Plugins are imported here, before the command begins: what they print is no part of its document.
        with contextlib.redirect_stdout(sys.stderr):
            check_format(value)
    except (ConfigError, FormatConflictError) as error:
        raise click.BadParameter(str(error), context, parameter) from error
    return value


WHICH_FILES = ("subfolder", "use_format", "variant", "rank", "world_size")
"""The parameters of `which_files`: the keyword arguments of `resolve`."""


def which_files(command: F) -> F:
    """Which files of a reference are meant."""
    for option in (
        click.option("--subfolder", metavar="NAME", help="The component of a model that has several, as transformer."),
        click.option(
            "--format",
            "use_format",
            callback=_known_format,
            metavar="NAME",
            help="Read only files of this format (see `list`).",
        ),
        click.option("--variant", help="The variant of the files, as in model.fp16.safetensors."),
        click.option("--rank", type=click.IntRange(min=0), help="For checkpoints saved split per rank."),
        click.option("--world-size", type=click.IntRange(min=1), help="For checkpoints saved split per rank."),
    ):
        command = option(command)
    return command


def which_reader(command: F) -> F:
    """What is asked of the reader."""
    for option in (
        *FLAGS,
        click.option("--filter", "patterns", multiple=True, metavar="GLOB", help="Only tensors whose names match."),
        click.option("--owned", is_flag=True, help="Tensors that do not depend on the files."),
    ):
        command = option(command)
    return command


HOW = ("broadcast", "partition", "slices")
"""The parameters of `which_ranks`: how several ranks load together."""


def which_ranks(command: F) -> F:
    """What one of several ranks reads."""
    for option in (
        click.option("--broadcast", is_flag=True, help="One of several ranks: the first reads and sends to all."),
        click.option("--partition", is_flag=True, help="One of several ranks: each reads a part, all get everything."),
        click.option("--slices", is_flag=True, help="One of several ranks: each reads only the part it keeps."),
    ):
        command = option(command)
    return command


def how(given: dict[str, Any], config: LayeredConfig) -> str | None:
    """Takes the options of `which_ranks` out of ``given``; without any, the configuration may ask for a broadcast.

    Raises UsageError for two of them and what excludes them.
    """
    asked = {name: f"--{name}" for name in HOW if given.pop(name)}
    setting = config.setting("enable_broadcast_weight_load")
    if setting is not None and setting.value and not asked:
        asked["broadcast"] = str(setting)
    if "broadcast" in asked and setting is not None and setting.source == "--disable-broadcast-weight-load":
        raise click.UsageError(f"--broadcast and {setting.source} exclude each other")
    if len(asked) > 1:
        raise click.UsageError("{} and {} exclude each other".format(*asked.values()))
    for how, said in asked.items():
        _check_how(how, said, given, config)
    return next(iter(asked), None)


def _check_how(how: str, said: str, given: Mapping[str, Any], config: LayeredConfig) -> None:
    verify = config.setting("verify")
    if verify is not None and verify.value:
        raise click.UsageError(f"{verify} and {said} exclude each other: run `weight-readers verify` before")
    if given["owned"] and (how != "slices" or given["into"] is None):
        raise click.UsageError(f"--owned says nothing with {said}: its tensors are owned in any case")


def check_load(given: Mapping[str, Any]) -> None:
    """Refuse what excludes itself, before any file is looked at. Raises UsageError."""
    into, device = given["into"] is not None, given["device"] or ""
    rules = (
        (given["cast"] and not into, "--cast converts what --into fills: give both"),
        (given["partial"] and not into, "--partial is about the names of what --into fills: give both"),
        (into and given["patterns"], "--filter and --into exclude each other: the module says which tensors it wants"),
        (device.startswith("meta"), "--device meta has no values to load: `weight-readers inspect` lists the tensors"),
    )
    for broken, message in rules:
        if broken:
            raise click.UsageError(message)
    check_ranks(given)


def report_file(path: str | None) -> ReportFile | None:
    """Raises BadParameter where nothing can be written at ``path``."""
    try:
        return None if path is None else ReportFile(path)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise click.BadParameter(cannot_write(path, error), param_hint="--report") from error


def check_ranks(given: Mapping[str, Any]) -> None:
    rank, world_size = given["rank"], given["world_size"]
    if (rank is None) != (world_size is None):
        raise click.UsageError("--rank and --world-size are given together or not at all")
    if rank is not None and rank >= world_size:
        raise click.UsageError(f"--rank must be less than --world-size {world_size}, and is {rank}")


def key_filter(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    return (lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)) if patterns else None


def imported(target: str | None, option: str) -> Callable[..., Any] | None:
    """The callable ``module:attribute``, looked for in the current folder last of all."""
    if target is None:
        return None
    module, colon, attribute = target.partition(":")
    if not colon or not module or not attribute:
        raise click.BadParameter(f"{target!r} is not MODULE:CALLABLE", param_hint=option)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"cannot import {target!r}: {error}", param_hint=option) from error
    if not callable(found):
        raise click.BadParameter(f"{target!r} is {type(found).__name__}, which cannot be called", param_hint=option)
    return _guarded(found, f"{option} {target}")


def _guarded(function: Callable[..., Any], title: str) -> Callable[..., Any]:
    """The user's code: its errors come with its own traceback, and what it prints is no part of our output."""

    def call(*arguments: Any) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return function(*arguments)
        except Exception as error:
            trace = error.__traceback__.tb_next if error.__traceback__ else None
            click.echo("".join(traceback.format_exception(type(error), error, trace)), err=True, nl=False)
            raise click.ClickException(f"{title} raised {type(error).__name__}: {error}") from error

    return call
