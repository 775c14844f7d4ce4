# SPDX-License-Identifier: Apache-2.0
"""What a load of several ranks did: one report per rank, with what each of them read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weight_readers_loader.wording import counted, size, some


@dataclass(frozen=True, kw_only=True)
class DistributedReport:
    """One load as ``rank`` saw it.

    ``bytes_wanted`` is the payload that this rank ended up with, ``bytes_read`` what it read of the files itself, and
    ``read_by_rank`` that of every rank by its number. ``storage_bytes`` are what its process fetched from storage
    meanwhile (0 for cached files, None off Linux). ``reader`` is None for a rank that read nothing. The other fields
    are those of `LoadReport`.
    """

    reference: str
    how: str
    rank: int
    reader: str | None
    tensors: int
    bytes_wanted: int
    bytes_read: int
    read_by_rank: Mapping[int, int]
    storage_bytes: int | None
    seconds: float
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()
    cast: Mapping[str, int] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    left_on_meta: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {k: dict(v) if isinstance(v, Mapping) else v for k, v in data.items()}
        plain["read_by_rank"] = {str(rank): count for rank, count in self.read_by_rank.items()}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    def __str__(self) -> str:
        return "\n".join(f"{label + ':':<12}{value}" for label, value in self._lines() if value)

    def _lines(self) -> list[tuple[str, str]]:
        ranks = ", ".join(f"rank {rank} {size(count)}" for rank, count in self.read_by_rank.items())
        stored = "" if self.storage_bytes is None else f", {size(self.storage_bytes)} from storage by rank {self.rank}"
        return [
            ("how", f"{self.how} over {counted(len(self.read_by_rank), 'rank')}"),
            ("reader", self.reader or "none: this rank was sent everything"),
            *(("not used", option) for option in self.unused),
            ("rank", f"{self.rank}: {counted(self.tensors, 'tensor')}, {size(self.bytes_wanted)}"),
            ("read", f"{ranks}{stored}"),
            ("time", f"{self.seconds:.3f} s"),
            ("cast", ", ".join(f"{count} x {what}" for what, count in self.cast.items())),
            ("tied", "; ".join(" = ".join(names) for names in self.tied)),
            ("missing", some(self.missing, 5) if self.missing else ""),
            ("unexpected", some(self.unexpected, 5) if self.unexpected else ""),
            ("on meta", some(self.left_on_meta, 5) if self.left_on_meta else ""),
            *(("decided", decision) for decision in self.decisions),
            *(("notice", notice) for notice in self.notices),
        ]
