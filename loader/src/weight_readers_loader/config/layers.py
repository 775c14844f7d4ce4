# SPDX-License-Identifier: Apache-2.0
"""Layers of configuration: the higher one decides, None inherits, and every value keeps its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weight_readers_loader.config.model import LoadConfig

DEFAULTS: Mapping[str, Any] = {
    "enable_multithread_weight_load": True,
    "enable_broadcast_weight_load": False,
    "verify": False,
}
"""What counts where no layer says anything. All else is left to policy and to the reader that is picked."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Values from one place. ``sources`` are for fields whose place is known more closely (one variable of many)."""

    source: str
    values: LoadConfig
    sources: Mapping[str, str] = field(default_factory=dict)

    def source_of(self, name: str) -> str:
        return self.sources.get(name, self.source)


class Setting(NamedTuple):
    """One option as it counts: its value, where that comes from, and how high that layer is (the default is -1)."""

    name: str
    value: Any
    source: str
    height: int

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} ({self.source})"


@dataclass(frozen=True)
class LayeredConfig:
    """The layers of one load, the lowest first."""

    layers: tuple[Layer, ...] = ()

    def over(self, layer: Layer) -> LayeredConfig:
        """This, with ``layer`` on top."""
        return LayeredConfig((*self.layers, layer))

    def setting(self, name: str) -> Setting | None:
        """The option as it counts; None where no layer gives it and it has no default of its own."""
        for height, layer in self._from_the_top():
            value = getattr(layer.values, name)
            if value is not None:
                return Setting(name, value, layer.source_of(name), height)
        return Setting(name, DEFAULTS[name], "default", -1) if name in DEFAULTS else None

    def value(self, name: str) -> Any:
        found = self.setting(name)
        return None if found is None else found.value

    def reader_options(self) -> dict[str, Setting]:
        """Option of a reader -> setting. Layers add to each other here; None in a higher one inherits."""
        found: dict[str, Setting] = {}
        for height, layer in self._from_the_top():
            for name, value in (layer.values.reader_options or {}).items():
                if value is not None and name not in found:
                    source = layer.source_of("reader_options")
                    found[name] = Setting(f"reader_options.{name}", value, source, height)
        return found

    def settings(self) -> list[Setting]:
        """Everything that some layer gives, in the order of the fields."""
        return [setting for setting in self._all() if setting.height >= 0]

    def to_json(self) -> dict[str, Any]:
        """Name -> value and source, defaults included."""
        return {s.name: {"value": s.value, "source": s.source} for s in self._all()}

    def _all(self) -> Iterator[Setting]:
        for name in LoadConfig.model_fields:
            if name != "reader_options" and (found := self.setting(name)) is not None:
                yield found
        yield from self.reader_options().values()

    def _from_the_top(self) -> Sequence[tuple[int, Layer]]:
        return list(enumerate(self.layers))[::-1]
