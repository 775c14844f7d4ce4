# SPDX-License-Identifier: Apache-2.0
"""The flags that are fields of `LoadConfig`, one to one, and the layers that a command makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from weight_readers_loader.config import LayeredConfig

CACHE_DIR = click.option(
    "--cache-dir", metavar="FOLDER", help="Where copies of stored GGUF files go.  [default: weight-readers in ~/.cache]"
)
READER_OPTION = click.option(
    "--option", "reader_options", multiple=True, metavar="NAME=VALUE", help="An option of the reader."
)
MANIFEST = click.option(
    "--manifest", type=click.Path(exists=True), help="Digests: a file of sha256sum, or a folder of git-lfs pointers."
)
FLAGS = (
    CACHE_DIR,
    click.option("--config", type=click.Path(), help="A configuration file, TOML or JSON; flags come before it."),
    click.option("--stage", metavar="NAME", help="The stage of the file whose options count too."),
    click.option("--reader", help="Ask for a reader by name."),
    click.option("--prefer", multiple=True, metavar="NAME", help="A reader to prefer; repeated, the best first."),
    click.option("--strict/--no-strict", default=None, help="No fallback, and nothing that the index does not name."),
    click.option(
        "--enable-multithread-weight-load/--disable-multithread-weight-load",
        default=None,
        help="Whether several threads may read; disabled, a sequential reader reads.  [default: enabled]",
    ),
    click.option("--num-weight-load-threads", type=click.IntRange(1, 1024), help="Threads, for a reader that has any."),
    click.option(
        "--enable-broadcast-weight-load/--disable-broadcast-weight-load",
        default=None,
        help="Whether one rank reads for all.  [default: disabled]",
    ),
    click.option("--max-in-flight-bytes", metavar="SIZE", help="Bytes under way at most, as 256MiB."),
    click.option("--host-budget", metavar="SIZE", help="Host memory that a load may take, as 8GiB, or auto."),
    click.option("--direct-io", type=click.Choice(["on", "off", "auto"]), help="Past the page cache."),
    click.option("--prefetch", type=click.IntRange(0, 64), help="Threads that read ahead in mapped files."),
    click.option(
        "--verify/--no-verify",
        "--sha256",
        "verify",
        default=None,
        help="Compare what is read with the digests of --manifest, or the names of HF cache blobs.  [default: no]",
    ),
    MANIFEST,
    click.option("--device", help="Where tensors go.  [default: cpu]"),
    click.option(
        "--dequantize",
        type=click.Choice(["bf16", "fp16", "fp32", "bfloat16", "float16", "float32"]),
        help="Numbers of this dtype for quantized weights.  [default: packed, as stored]",
    ),
    click.option(
        "--adapter",
        "adapters",
        multiple=True,
        metavar="NAME[=JSON]",
        help='An adapter and its options, as prefix={"add": "a."}; repeated, one after the other.',
    ),
    click.option(
        "--dtype",
        type=click.Choice(["bf16", "fp16", "fp32", "bfloat16", "float16", "float32", "float64"]),
        help="Convert floating-point tensors.  [default: as stored]",
    ),
    click.option("--keep-dtype", multiple=True, metavar="GLOB", help="With --dtype: names that keep theirs."),
    READER_OPTION,
)
"""The fields of `LoadConfig`, one to one."""


def config_of(given: dict[str, Any]) -> LayeredConfig:
    """What was typed, over the file and the environment. Takes the flags out of ``given``.

    Raises UsageError and ConfigError, which both end a command with 2.
    """
    _check_threads(given)
    if given["manifest"] is not None and given["verify"] is False:
        raise click.UsageError("--manifest and --no-verify exclude each other")
    from weight_readers_loader.config import Layer, LoadConfig, layered

    given["verify"] = given.pop("manifest") or given["verify"]
    typed = {name: given.pop(name) for name in LoadConfig.model_fields if name in given}
    typed |= {name: value or None for name, value in typed.items() if isinstance(value, tuple)}
    typed["reader_options"] = _options(typed["reader_options"] or ()) or None
    typed["adapters"] = [_adapter(each) for each in typed["adapters"] or ()] or None
    config = layered(file=given.pop("config"), stage_name=given.pop("stage"))
    sources = {name: _flag(name, value) for name, value in typed.items()}
    return config.over(Layer(source="argument", values=LoadConfig.of(typed, source="argument"), sources=sources))


def reading_of(given: dict[str, Any], reference: str) -> dict[str, Any]:
    """``cache_dir`` and ``options`` of a command that has no flags of the configuration but these, or one of them.

    They are for reading ``reference``, and come before the environment, whose reader does not count here. Takes them
    out of ``given``. Raises UsageError, and ConfigError for an option that no reader has.
    """
    from weight_readers_loader.config import Layer, LoadConfig, layered
    from weight_readers_loader.config.names import check_reader_options
    from weight_readers_loader.resolve import scheme_of

    typed = {"cache_dir": given.pop("cache_dir", None), "reader_options": _options(given.pop("reader_options")) or None}
    sources = {name: _flag(name, value) for name, value in typed.items()}
    config = layered().over(Layer(source="argument", values=LoadConfig.of(typed, source="argument"), sources=sources))
    check_reader_options(config, None, scheme_of(reference))
    cache_dir = config.value("cache_dir")
    options = {name: setting.value for name, setting in config.reader_options().items()}
    return {"cache_dir": None if cache_dir is None else str(cache_dir), "options": options}


def _flag(name: str, value: Any) -> str:
    written = {"reader_options": "option", "adapters": "adapter"}.get(name, name)
    if name == "verify" and isinstance(value, str):
        written = "manifest"
    if value is False:
        written = f"no_{name}" if not name.startswith("enable_") else name.replace("enable_", "disable_", 1)
    return f"--{written.replace('_', '-')}"


def _check_threads(given: Mapping[str, Any]) -> None:
    """Refuse one thread and several at once. Raises UsageError."""
    if given["enable_multithread_weight_load"] is False and given["num_weight_load_threads"] not in (None, 1):
        raise click.UsageError("--num-weight-load-threads and --disable-multithread-weight-load exclude each other")


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    """``name=value``, the value as JSON where it is JSON (true, 4), as text otherwise."""
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--option")
        if name in given:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--option")
        try:
            given[name] = json.loads(value)
        except json.JSONDecodeError:
            given[name] = value
    return given


def _adapter(given: str) -> dict[str, Any]:
    """``name`` or ``name={"option": value}``."""
    name, equals, text = given.partition("=")
    try:
        options = json.loads(text) if equals else {}
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"the options of {name!r} are no JSON: {error}", param_hint="--adapter") from error
    if not name or not isinstance(options, dict):
        raise click.BadParameter(f"{given!r} is not NAME or NAME={{JSON}}", param_hint="--adapter")
    return {**options, "name": name}
