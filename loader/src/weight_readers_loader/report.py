# SPDX-License-Identifier: Apache-2.0
"""What a load did: a `LoadReport`, for people as lines and for programs as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weight_readers import Selection
from weight_readers_loader.wording import counted, size, some

REPORT_VERSION = 1
"""Of the JSON form; it grows when a field changes its meaning or goes away, not when one is added."""


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """One load, in figures. Bytes are payload (no headers) unless said otherwise, seconds are of the wall.

    reference: what was asked for. selection: which reader, and why that one; ``reader`` is its name.
    files, tensors: how many were read of the checkpoint's.
    bytes_wanted, bytes_read: after filter and slices; what the reader handed out or filled.
    storage_bytes: what the process fetched from storage meanwhile, read-ahead and faults included: 0 for cached
        files, None off Linux. ``bytes_cached`` is the part of ``bytes_read`` that cannot have come from there.
    phases: seconds by phase: ``resolve`` the reference, ``headers``, ``select`` readers, ``read``, ``place``. The
        first two are those of opening the checkpoint, also in the report of its second load.
    seconds: ``read`` and ``place``. ``seconds_to_first``: until the first tensor was handed out.
    peak_rss_anon, peak_rss_file: bytes of the whole process, None off Linux. major_faults: during the load.
    dtypes: bytes wanted by the dtype in the files, in the format's words.
    verified_files: files whose digest was compared and right. verify_bytes: bytes of the files, headers included,
        that were read for that alone.
    decisions: what the reader decided for itself while it read, and by which fact.
    unused: options that were given for readers that have them, and that this one does without.
    copied: tensors that lay unaligned in the file. cast: ``"from -> to"`` to a count.
    skipped: ``(what, why)`` for files that lie there and for tensors of the checkpoint that were not read.
    missing, unexpected: names the target has and the checkpoint lacks, and the reverse. tied: names of one parameter.
    aliases: names that were filled from a tensor stored under another. left_on_meta: buffers that no checkpoint
        holds, still without memory. notices: what a person should know of the files.
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
    phases: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, int] = field(default_factory=dict)
    verified_files: int = 0
    verify_bytes: int = 0
    decisions: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    copied: int = 0
    cast: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    left_on_meta: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def reader(self) -> str | None:
        return self.selection.chosen

    @property
    def bytes_cached(self) -> int | None:
        return None if self.storage_bytes is None else max(0, self.bytes_read - self.storage_bytes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, with ``version`` and the derived ``reader`` and ``bytes_cached`` beside the fields."""
        fields = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}
        return {
            "version": REPORT_VERSION,
            **fields,
            "reader": self.reader,
            "bytes_cached": self.bytes_cached,
            "selection": self.selection.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoadReport:
        """The report that `to_json` described. Raises ValueError for another version, TypeError for what is none."""
        if not isinstance(data, Mapping) or "version" not in data:
            raise TypeError("not the JSON of a load report: it has no version")
        if data["version"] != REPORT_VERSION:
            raise ValueError(f"a load report of version {data['version']!r}; this is read here: {REPORT_VERSION}")
        given = {name: value for name, value in data.items() if name not in ("version", "reader", "bytes_cached")}
        if unknown := sorted(set(given) - set(cls.__dataclass_fields__)):
            raise TypeError(f"a load report has no field {unknown}; it has {sorted(cls.__dataclass_fields__)}")
        restored = {name: _RESTORED.get(name, _as_it_is)(value) for name, value in given.items()}
        return cls(**restored)

    def __str__(self) -> str:
        return "\n".join(f"{label + ':':<12}{value}" for label, value in self._lines() if value)

    def _lines(self) -> list[tuple[str, str]]:
        first = self.seconds_to_first
        after = "" if first is None else f", first tensor after {first * 1e3:.1f} ms"
        from_storage = "" if self.storage_bytes is None else f", {size(self.storage_bytes)} from storage"
        read = f"{counted(self.tensors, 'tensor')}, {size(self.bytes_read)} of {size(self.bytes_wanted)} wanted"
        return [
            ("reader", f"{self.reader} ({self.selection.reason})"),
            ("settings", self._settings()),
            *(("not used", option) for option in self.unused),
            ("read", f"{read}, {counted(self.files, 'file')}{from_storage}"),
            *(("decided", decision) for decision in self.decisions),
            ("dtypes", ", ".join(f"{name} {size(nbytes)}" for name, nbytes in self.dtypes.items())),
            ("time", f"{self.seconds:.3f} s{self._phases('read', 'place')}{after}{self._before()}"),
            ("memory", self._memory()),
            ("budget", self._budget()),
            ("verified", self._verified()),
            *self._remarks(),
        ]

    def _settings(self) -> str:
        each = [f"{name}={value} ({why})" for name, value, why in self.selection.made_with()]
        return ", ".join([*each, "the rest by default"]) if each else ""

    def _phases(self, *names: str) -> str:
        each = ", ".join(f"{name} {self.phases[name]:.3f}" for name in names if name in self.phases)
        return f" ({each})" if each else ""

    def _before(self) -> str:
        """What went by before the load itself: it is no part of ``seconds``."""
        phases = self._phases(*(name for name in self.phases if name not in ("read", "place")))
        before = sum(seconds for name, seconds in self.phases.items() if name not in ("read", "place"))
        return f"; before that {before:.3f} s{phases}" if phases else ""

    def _budget(self) -> str:
        budget = self.selection.environment.host_memory_budget
        return "" if budget is None else f"{size(budget)} of host memory"

    def _verified(self) -> str:
        if not self.verified_files:
            return ""
        besides = f", {size(self.verify_bytes)} read besides"
        return f"sha256 right for {counted(self.verified_files, 'file')}{besides}"

    def _memory(self) -> str:
        if self.peak_rss_anon is None or self.peak_rss_file is None:
            return ""
        peak = f"anonymous {size(self.peak_rss_anon)}, file {size(self.peak_rss_file)} (peak of the process)"
        return f"{peak}, {counted(self.major_faults, 'major fault')}"

    def _remarks(self) -> list[tuple[str, str]]:
        return [
            ("copied", f"{counted(self.copied, 'tensor')}, unaligned in the file" if self.copied else ""),
            ("cast", ", ".join(f"{count} x {what}" for what, count in self.cast.items())),
            ("tied", "; ".join(" = ".join(names) for names in self.tied)),
            ("aliases", ", ".join(f"{name} from {source}" for name, source in self.aliases.items())),
            ("skipped", "; ".join(f"{what}: {why}" for what, why in self.skipped)),
            ("missing", _named(self.missing)),
            ("unexpected", _named(self.unexpected)),
            ("on meta", _named(self.left_on_meta)),
            *(("notice", notice) for notice in self.notices),
        ]


def _named(names: tuple[str, ...]) -> str:
    return some(names, 5) if names else ""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _as_it_is(value: Any) -> Any:
    return value


def _pairs(value: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(map(tuple, value))


_RESTORED: Mapping[str, Callable[[Any], Any]] = {
    "selection": Selection.from_json,
    "skipped": _pairs,
    "tied": _pairs,
    "missing": tuple,
    "unexpected": tuple,
    "left_on_meta": tuple,
    "notices": tuple,
    "decisions": tuple,
    "unused": tuple,
}
"""What JSON has as lists and objects, made what the fields hold."""
