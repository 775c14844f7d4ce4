# SPDX-License-Identifier: Apache-2.0
"""``explain``: the selection that a load would make, from the headers and without reading a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weight_readers import (
    CheckpointError,
    ConfigError,
    NoSuitableReaderError,
    Selection,
    WeightReadersError,
    describe_reader,
)
from weight_readers.tensors import TensorTable
from weight_readers_loader.adapters import Adapted, Adapter
from weight_readers_loader.arguments import real_device
from weight_readers_loader.budget import HostBudget
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.commands.elsewhere import Elsewhere
from weight_readers_loader.commands.output import errors
from weight_readers_loader.config import LayeredConfig
from weight_readers_loader.config.adapting import configured_adapters
from weight_readers_loader.config.asked import asked, without_use
from weight_readers_loader.config.names import check_reader_name, check_reader_options
from weight_readers_loader.preflight import preflight
from weight_readers_loader.remote import headers_of
from weight_readers_loader.resolve import Layout
from weight_readers_loader.resolve.formats import file_format
from weight_readers_loader.wanted import Wanted
from weight_readers_loader.wording import counted


@dataclass(frozen=True, kw_only=True)
class Explained:
    layout: Layout
    selection: Selection
    config: LayeredConfig
    cache: str | None = None
    budget: HostBudget | None = None
    elsewhere: Elsewhere | None = None
    doubt: str | None = None
    unused: tuple[str, ...] = ()
    error: WeightReadersError | None = None

    def lines(self, reference: str) -> list[str]:
        return [*self.about(reference), self.selection.explain(), *self.remarks()]

    def about(self, reference: str) -> list[str]:
        """What was looked at."""
        files = counted(len(self.layout.files), "file")
        lines = [f"{reference}: {self.layout.format}, {files}"]
        return lines + ([f"what if: {', '.join(self.elsewhere.told())}"] if self.elsewhere is not None else [])

    def remarks(self) -> list[str]:
        """What counts besides the selection."""
        scheme = "" if self.layout.scheme == "file" else f"{self.layout.scheme} "
        lines = [f"  {scheme}{name}: {value}" for name, value in self.layout.place.items()]
        if self.cache is not None:
            lines.append(f"  copies of what is read go to {self.cache}")
        if self.budget is not None:
            lines.append(f"  host budget: {self.budget.said}")
        lines += [f"  option {setting}" for setting in self.config.settings()]
        if made := self._made_with():
            lines.append(f"  made with: {', '.join(f'{name}={value!r}' for name, value in made.items())}")
        lines += [f"  not used: {option}" for option in self.unused]
        return lines + [f"notice: {notice}" for notice in self._notices()]

    def _notices(self) -> list[str]:
        return [*self.layout.notices, *filter(None, [self.doubt])]

    def _made_with(self) -> dict[str, Any]:
        """What the chosen reader's constructor gets: its share of the settings, and the options."""
        return {name: value for name, value, _ in self.selection.made_with()}

    def to_json(self) -> dict[str, Any]:
        return {
            "files": list(self.layout.paths),
            "place": dict(self.layout.place),
            "cache": self.cache,
            "what_if": None if self.elsewhere is None else self.elsewhere.told(),
            "host_budget": None if self.budget is None else self.budget.nbytes,
            "selection": self.selection.to_json(),
            "config": self.config.to_json(),
            "made_with": self._made_with(),
            "unused": list(self.unused),
            "notices": self._notices(),
            "errors": errors(self.error) if self.error else [],
        }


def explain(
    resolve: Callable[[Mapping[str, Any]], Layout],
    *,
    scheme: str,
    config: LayeredConfig,
    key_filter: Callable[[str], bool] | None,
    owned: bool,
    into_existing: bool,
    elsewhere: Elsewhere | None = None,
) -> Explained:
    """The same request that a load makes. ``resolve`` finds the files of ``scheme``, with the options of the reader.

    ``elsewhere`` has facts that count in place of those of this machine.

    Where no reader fits, ``error`` is what a load would end with, the command that mends it included. Raises
    ConfigError as a load would; a value of a reader's option is tried out on the reader, without reading.
    """
    check_reader_name(config.value("reader"))
    check_reader_options(config, config.value("reader"), scheme)
    wishes, named = asked(config), config.setting("device")
    device = "cpu" if named is None else real_device(named.value, source=named.source)
    layout = resolve(wishes["options"])
    chooser = Chooser(
        format=layout.format, scheme=layout.scheme, suppose=elsewhere.over if elsewhere else None, **wishes
    )
    # Headers of local files are the same whatever the options; of stored ones these say where they are.
    options = wishes["options"] if layout.scheme != "file" else {}
    looking = Chooser(format=layout.format, scheme=layout.scheme, options=options, cache_dir=wishes["cache_dir"])
    wanted, needs, doubt = _wanted(layout, key_filter, configured_adapters(config), looking)
    device = (elsewhere and elsewhere.device) or device
    kept = device.split(":")[0] == "cpu" and not into_existing
    request = {"wanted": wanted, **needs, "device": device, "owned": owned}
    request |= {"kept_on_host": kept, "into_targets": into_existing}
    selection, error = chooser.explain(**request), None
    if selection.chosen is None or wishes["options"] or wishes["settings"]:
        try:
            _, selection = chooser.pick(**request)
        except ConfigError:
            raise
        except WeightReadersError as refusal:
            error = refusal
    cache = str(chooser.fetched.cache) if chooser.fetched is not None else None
    return Explained(
        layout=layout,
        selection=selection,
        config=config,
        cache=cache,
        budget=chooser.budget,
        elsewhere=elsewhere,
        doubt=doubt,
        unused=without_use(config, describe_reader(selection.chosen)) if selection.chosen else (),
        error=error,
    )


def _wanted(
    layout: Layout,
    key_filter: Callable[[str], bool] | None,
    adapters: Sequence[Adapter],
    chooser: Chooser,
) -> tuple[Wanted | None, Mapping[str, Any], str | None]:
    """What is wanted by the headers; where they cannot be read what is known of its needs, and why that is all."""
    if layout.remote is not None and not file_format(layout.format).header_first:
        return None, _without_headers(key_filter), f"the headers of {layout.format} files are read after the download"
    try:
        reader, _ = chooser.pick()
        checked = preflight(layout, headers_of(layout, reader), strict=False)
    except (CheckpointError, NoSuitableReaderError) as error:
        needs = _without_headers(key_filter)
        return None, needs, None if isinstance(error, NoSuitableReaderError) else f"a load would end with: {error}"
    Adapted(adapters, checked.tensors, check=True)
    wanted = Wanted.of(checked.tensors, key_filter, restricted=checked.restricted)
    return wanted.only(Adapted(adapters, wanted.tensors).needs), {}, None


_BY_HEADERS = ("bytes_wanted", "largest_tensor", "stretches")


def _without_headers(key_filter: Callable[[str], bool] | None) -> Mapping[str, Any]:
    wanted = Wanted(tensors=TensorTable({}), whole=key_filter is None)
    return {name: value for name, value in wanted.needs().items() if name not in _BY_HEADERS}
