# SPDX-License-Identifier: Apache-2.0
"""Parts of pages that the installed packages say of themselves: what readers declare, and the help of the commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import click

import weight_readers
from weight_readers import Feature, ReaderInfo
from weight_readers_loader.cli import cli

OURS = ("safetensors", "threaded", "runai_streamer", "gguf", "pt")
"""The readers of this repository, in the order of the table."""

_MEANING = {
    Feature.KEY_FILTER: "skips unwanted tensors before their bytes are read",
    Feature.SLICES: "reads the asked part of a tensor and no more",
    Feature.MULTI_SLICES: "reads a part of several dimensions and no more",
    Feature.READ_INTO: "reads straight into tensors that exist",
    Feature.FILE_MAPPING: "gives views of the file, whose pages the kernel can drop",
    Feature.BOUNDED_MEMORY: "holds a stated amount beyond what you keep, at most",
    Feature.CONCURRENT: "reads with several threads or requests",
    Feature.DIRECT_IO: "can bypass the page cache",
    Feature.PACKED: "gives quantized blocks as they are stored",
    Feature.DISTRIBUTED: "shares a load with other ranks by itself",
}


def readers() -> str:
    """What the readers of this repository declare, as a table. Raises UnknownReaderError where one is not installed."""
    infos = [weight_readers.describe_reader(name) for name in OURS]
    rows = [("", *(f"`{info.name}`" for info in infos)), ("---",) * (len(infos) + 1)]
    rows += [
        ("formats", *(", ".join(sorted(info.formats)) for info in infos)),
        ("places", *(_places(info) for info in infos)),
        ("a tensor is valid", *(info.lifetime.value for info in infos)),
        ("a write into it", *(info.writes.value for info in infos)),
        ("order of tensors", *(info.order.value for info in infos)),
        ("stands in for others", *(_mark(info.fallback) for info in infos)),
    ]
    rows += [(_MEANING[f], *(_mark(f in info.features) for info in infos)) for f in _declared(infos)]
    rows.append(("options", *(", ".join(f"`{name}`" for name in sorted(info.options)) for info in infos)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _declared(infos: Sequence[ReaderInfo]) -> list[Feature]:
    return [feature for feature in _MEANING if any(feature in info.features for info in infos)]


def _places(info: ReaderInfo) -> str:
    return ", ".join(sorted(info.schemes | set(info.more_schemes)))


def _mark(declared: bool) -> str:
    return "yes" if declared else ""


def commands() -> str:
    """Each command's own help, below a heading of its own."""
    return "\n\n".join(f"## {name}\n\n```text\n{text}\n```" for name, text in _helps())


def _helps() -> Iterator[tuple[str, str]]:
    context = click.Context(cli, info_name="weight-readers", terminal_width=100, max_content_width=100)
    yield "weight-readers", cli.get_help(context)
    for name, command in sorted(cli.commands.items()):
        yield name, command.get_help(click.Context(command, parent=context, info_name=name, terminal_width=100))


def core() -> str:
    """What core exports, by kind and name; its errors have a page of their own."""
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Constants": []}
    for name in weight_readers.__all__:
        value = getattr(weight_readers, name)
        if isinstance(value, type):
            if not issubclass(value, Exception):
                kinds["Classes"].append(name)
        else:
            kinds["Functions" if inspect.isroutine(inspect.unwrap(value)) else "Constants"].append(name)
    return "\n\n".join(f"## {kind}\n\n{_directives(names)}" for kind, names in kinds.items())


def _directives(names: Sequence[str]) -> str:
    return "\n\n".join(f"::: weight_readers.{name}\n    options:\n      heading_level: 3" for name in names)


PARTS = {"commands": commands, "core": core, "readers": readers}
"""What ``<!-- generated: NAME -->`` stands for in a page."""
