# SPDX-License-Identifier: Apache-2.0
"""What a load did: a `LoadReport`, and the meter that fills it in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from weight_readers import ReadStats, Selection
from weight_readers_loader.process import PeakMemory, major_faults, storage_bytes_read
from weight_readers_loader.wording import counted, size, some


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """One load, in figures.

    ``bytes_wanted`` and ``bytes_read`` are payload bytes; ``storage_bytes`` are what the process fetched from
    storage meanwhile (0 for cached files, None off Linux). ``seconds_to_first`` ends when the first tensor is
    handed out. Peaks are of the whole process. ``copied`` tensors lay unaligned in the file, ``cast`` maps
    ``"from -> to"`` to a count. ``left_on_meta`` are buffers no checkpoint holds, still without memory.
    """

    reference: str
    selection: Selection
    files: int
    tensors: int
    bytes_wanted: int
    bytes_read: int
    storage_bytes: int | None
    seconds: float
    seconds_to_first: float | None
    peak_rss_anon: int | None
    peak_rss_file: int | None
    major_faults: int
    copied: int = 0
    cast: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    left_on_meta: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def reader(self) -> str | None:
        return self.selection.chosen

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}
        return plain | {
            "reader": self.reader,
            "selection": self.selection.to_json(),
            "cast": dict(self.cast),
            "aliases": dict(self.aliases),
            "tied": [list(names) for names in self.tied],
        }

    def __str__(self) -> str:
        return "\n".join(f"{label + ':':<12}{value}" for label, value in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        first = self.seconds_to_first
        after = "" if first is None else f", first tensor after {first * 1e3:.1f} ms"
        from_storage = "" if self.storage_bytes is None else f", {size(self.storage_bytes)} from storage"
        lines = [
            ("reader", f"{self.reader} ({self.selection.reason})"),
            (
                "read",
                f"{counted(self.tensors, 'tensor')}, {size(self.bytes_read)} of {size(self.bytes_wanted)} wanted, "
                f"{counted(self.files, 'file')}{from_storage}",
            ),
            ("time", f"{self.seconds:.3f} s{after}"),
        ]
        if self.peak_rss_anon is not None and self.peak_rss_file is not None:
            peak = f"anonymous {size(self.peak_rss_anon)}, file {size(self.peak_rss_file)} (peak of the process)"
            lines.append(("memory", f"{peak}, {self.major_faults} major faults"))
        return lines + self._remarks()

    def _remarks(self) -> list[tuple[str, str]]:
        cast = ", ".join(f"{count} x {what}" for what, count in self.cast.items())
        aliases = ", ".join(f"{name} from {source}" for name, source in self.aliases.items())
        remarks = [
            ("copied", f"{counted(self.copied, 'tensor')}, unaligned in the file" if self.copied else ""),
            ("cast", cast),
            ("tied", "; ".join(" = ".join(names) for names in self.tied)),
            ("aliases", aliases),
            ("missing", _named(self.missing)),
            ("unexpected", _named(self.unexpected)),
            ("on meta", _named(self.left_on_meta)),
            *(("notice", notice) for notice in self.notices),
        ]
        return [(label, text) for label, text in remarks if text]


def _named(names: tuple[str, ...]) -> str:
    return some(names, 5) if names else ""


class Meter:
    """Measures a load between enter and exit."""

    def __init__(self) -> None:
        self.stats = ReadStats()
        self.seconds = 0.0
        self.seconds_to_first: float | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Meter:
        self.memory = self._stack.enter_context(PeakMemory())
        self._faults = major_faults()
        self._storage = storage_bytes_read()
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._begun
        self._stack.close()

    def update(self, stats: ReadStats) -> None:
        if self.seconds_to_first is None and stats.tensors:
            self.seconds_to_first = time.perf_counter() - self._begun
        self.stats = stats

    def figures(self) -> dict[str, Any]:
        """The measured fields of a `LoadReport`."""
        storage = storage_bytes_read()
        return {
            "tensors": self.stats.tensors,
            "bytes_wanted": self.stats.bytes_wanted,
            "bytes_read": self.stats.bytes_read,
            "copied": self.stats.copied,
            "storage_bytes": None if storage is None or self._storage is None else storage - self._storage,
            "seconds": self.seconds,
            "seconds_to_first": self.seconds_to_first,
            "peak_rss_anon": self.memory.anon,
            "peak_rss_file": self.memory.file,
            "major_faults": major_faults() - self._faults,
        }
