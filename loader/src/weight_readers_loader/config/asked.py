# SPDX-License-Identifier: Apache-2.0
"""What a configuration asks of core: a name, an order, options that a reader must have, and settings it may have."""

from __future__ import annotations

from functools import partial
from typing import Any

from weight_readers import ConfigError, Feature, ReaderInfo, available_reader_names, describe_reader
from weight_readers_loader.budget import BOUNDS, HostBudget
from weight_readers_loader.config.layers import LayeredConfig, Setting
from weight_readers_loader.config.variables import is_of_core
from weight_readers_loader.environment import available_memory

DEQUANTIZED = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"} | {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""What ``dequantize`` may be, in torch's words and in short ones."""

_THREADS = ("num_threads", "concurrency")
_NAMES = {
    "num_weight_load_threads": _THREADS,
    "max_in_flight_bytes": BOUNDS,
    "direct_io": ("direct_io",),
    "prefetch": ("prefetch",),
    "dequantize": ("dequantize",),
}
"""Our name for an option -> what readers call it in their constructors."""

_ALONE = {"num_weight_load_threads": 1, "prefetch": 0}
"""The values that are nothing to have: a reader that lacks the option reads so anyway."""


def asked(config: LayeredConfig) -> dict[str, Any]:
    """The arguments of a `Chooser` that follow from ``config``. Raises ConfigError for what excludes itself."""
    _check_threads(config)
    options = {name: setting.value for name, setting in config.reader_options().items()}
    settings: dict[str, Any] = {}
    for setting in _of_readers(config):
        required = setting.name == "dequantize" or (setting.name, setting.value) == ("direct_io", "on")
        for name in _NAMES[setting.name]:
            given = config.reader_options().get(name)
            if given is not None and _decides(given, setting):
                continue
            (options if required or given is not None else settings)[name] = setting.value
    return {
        "reader": config.value("reader"),
        "strict": _unless_of_core(config.setting("strict")),
        "prefer": tuple(_unless_of_core(config.setting("prefer")) or ()) or _sequential(config),
        "options": options,
        "settings": settings,
        "cache_dir": config.value("cache_dir"),
        "budget": _budget(config),
        "check": partial(check_bound, config),
    }


def _of_readers(config: LayeredConfig) -> list[Setting]:
    """What goes to whichever reader has it: one thread where several are forbidden, dtypes in one spelling."""
    found = [setting for name in _NAMES if (setting := config.setting(name)) is not None]
    single = config.setting("enable_multithread_weight_load")
    if single is not None and not single.value:
        found = [setting for setting in found if setting.name not in ("num_weight_load_threads", "prefetch")]
        found += [single._replace(name="num_weight_load_threads", value=1), single._replace(name="prefetch", value=0)]
    return [s._replace(value=DEQUANTIZED[s.value]) if s.name == "dequantize" else s for s in found]


def _decides(option: Setting, setting: Setting) -> bool:
    """Whether the reader's own option comes from the higher layer. Raises ConfigError where one layer gives two values.

    What one place says in two ways must be one thing.
    """
    if option.height == setting.height and DEQUANTIZED.get(option.value, option.value) != setting.value:
        raise ConfigError(f"{setting} and {option} differ", option=setting.name, source=setting.source)
    return option.height > setting.height


def _check_threads(config: LayeredConfig) -> None:
    single = config.setting("enable_multithread_weight_load")
    if single is None or single.value:
        return
    for name, harmless in _ALONE.items():
        setting = config.setting(name)
        # A lower layer's number is for whoever may have threads: the higher one takes that away.
        if setting is not None and setting.value != harmless and setting.height >= single.height:
            what = f"{name}={setting.value} needs enable_multithread_weight_load=True"
            said = f"{what} ({setting.source}), and that is False ({single.source})"
            raise ConfigError(said, option=name, source=setting.source)


def without_use(config: LayeredConfig, info: ReaderInfo) -> tuple[str, ...]:
    """Sentences about what is given for readers that have it, and the picked one does without."""
    lacking = [
        setting
        for setting in _of_readers(config)
        if setting.value != _ALONE.get(setting.name, setting.value) and not set(_NAMES[setting.name]) & info.options
    ]
    return tuple(f"{setting}: reader {info.name!r} has no option for it" for setting in lacking)


def check_alone(config: LayeredConfig) -> None:
    """Raise ConfigError where one process is to load as one of several ranks."""
    broadcast = config.setting("enable_broadcast_weight_load")
    if broadcast is not None and broadcast.value:
        raise ConfigError(
            f"{broadcast}: no rank reads for others in a load of one process",
            option="enable_broadcast_weight_load",
            source=broadcast.source,
            fix="Load with open_distributed, or with torchrun … weight-readers load; or say false",
        )


def _budget(config: LayeredConfig) -> HostBudget | None:
    asked, bound = config.setting("host_budget"), config.setting("max_in_flight_bytes")
    if asked is None:
        return None
    if bound is not None and isinstance(asked.value, int) and bound.value > asked.value:
        said = f"{bound} and {asked} exclude each other: what is under way is part of the budget"
        raise ConfigError(said, option=bound.name, source=bound.source)
    try:
        return HostBudget.of(asked.value, available_memory())
    except ValueError as error:
        raise ConfigError(f"{asked}: {error}", option=asked.name, source=asked.source) from error


def _unless_of_core(setting: Setting | None) -> Any:
    return None if setting is None or is_of_core(setting.name, setting.source) else setting.value


def _sequential(config: LayeredConfig) -> tuple[str, ...]:
    """Readers that read one tensor after the other, where several threads are forbidden and nothing else is said."""
    if config.value("enable_multithread_weight_load") or config.setting("prefer") is not None:
        return ()
    return tuple(name for name, info in installed().items() if Feature.CONCURRENT not in info.features)


def installed() -> dict[str, ReaderInfo]:
    """What each usable reader declares."""
    return {name: describe_reader(name) for name in available_reader_names()}


def check_bound(config: LayeredConfig, info: ReaderInfo) -> None:
    """Raise ConfigError where the picked reader can not keep to ``max_in_flight_bytes``.

    A mapping has nothing under way. A reader that copies has to have an option for it.
    """
    bound = config.setting("max_in_flight_bytes")
    # As it is declared: with the option copy a mapping reader has one tensor under way, the consumer's own.
    if bound is None or describe_reader(info.name).retains_file_mapping or set(BOUNDS) & set(info.options):
        return
    raise ConfigError(
        f"{bound} cannot be kept by reader {info.name!r}: it has no option for it and copies what it reads",
        option=bound.name,
        source=bound.source,
        fix="Leave it out, or choose another reader",
    )
