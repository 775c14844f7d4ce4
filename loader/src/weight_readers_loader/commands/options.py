# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

F = Callable[..., Any]

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
reference = click.argument("reference", metavar="REF")
manifest = click.option(
    "--manifest", type=click.Path(exists=True), help="Digests: a file of sha256sum, or a folder of git-lfs pointers."
)


def which_files(command: F) -> F:
    """Which files of a reference are meant: the keyword arguments of `resolve_layout`."""
    formats = click.Choice(["safetensors", "gguf", "pt"])
    for option in (
        click.option("--format", "use_format", type=formats, help="Read only files of this format."),
        click.option("--variant", help="The variant of the files, as in model.fp16.safetensors."),
        click.option("--rank", type=int, help="For checkpoints saved split per rank."),
        click.option("--world-size", type=int, help="For checkpoints saved split per rank."),
    ):
        command = option(command)
    return command


def which_reader(command: F) -> F:
    """What is asked of the reader."""
    for option in (
        click.option("--reader", help="Ask for a reader by name."),
        click.option("--option", multiple=True, metavar="NAME=VALUE", help="An option of the reader."),
        click.option("--filter", "patterns", multiple=True, metavar="GLOB", help="Only tensors whose names match."),
        click.option("--device", default="cpu", show_default=True, help="Where tensors go."),
        click.option("--owned", is_flag=True, help="Tensors that do not depend on the files."),
        click.option("--strict", is_flag=True, help="No fallback, and nothing that the index does not name."),
    ):
        command = option(command)
    return command


def key_filter(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    return (lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)) if patterns else None


def reader_options(pairs: Sequence[str]) -> dict[str, Any]:
    """``name=value``, the value as JSON where it is JSON (true, 4), as text otherwise."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--option")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def imported(target: str | None) -> Callable[..., Any] | None:
    if target is None:
        return None
    module, colon, attribute = target.partition(":")
    if not colon or not module or not attribute:
        raise click.BadParameter(f"{target!r} is not MODULE:CALLABLE")
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"cannot import {target!r}: {error}") from error
