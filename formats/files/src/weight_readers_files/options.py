# SPDX-License-Identifier: Apache-2.0
"""The options of readers that map files, and what they make of a reader's declaration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weight_readers import Feature, Lifetime, ReaderInfo, Writes

MAX_PREFETCH_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class MappingOptions:
    """Checked when made; ``reader`` is the name that errors say.

    readonly: map without write permission. A write into a tensor then ends the process, where the default private
        mapping turns each written page into anonymous memory. The file never changes either way.
    copy: read into memory of its own instead of mapping (lifetime `OWNED`); nothing depends on the file then.
    prefetch: number of threads, 0 to 64, that read the wanted ranges ahead of the consumer. What is handed out was
        read once without an error then; 0 leaves reading to the page faults of the consumer.
    """

    reader: str
    readonly: bool = False
    copy: bool = False
    prefetch: int = 0

    def __post_init__(self) -> None:
        for name in ("readonly", "copy"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"option {name!r} of reader {self.reader!r} must be True or False, not {value!r}")
        threads = f"option 'prefetch' of reader {self.reader!r} must be 0 to {MAX_PREFETCH_THREADS} threads"
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int):
            raise TypeError(f"{threads}, not {self.prefetch!r}")
        if not 0 <= self.prefetch <= MAX_PREFETCH_THREADS:
            raise ValueError(f"{threads}, not {self.prefetch}")
        if self.readonly and self.copy:
            raise ValueError(
                f"options 'readonly' and 'copy' of reader {self.reader!r} exclude each other: a copy is writable"
            )

    def declared(self, info: ReaderInfo) -> ReaderInfo:
        """``info`` as it is with these options: they change what is yielded, and who reads it."""
        if self.prefetch:
            info = replace(info, features=info.features | {Feature.CONCURRENT})
        if self.copy:
            features = info.features - {Feature.FILE_MAPPING}
            return replace(info, lifetime=Lifetime.OWNED, writes=Writes.OWN, features=features)
        return replace(info, writes=Writes.READ_ONLY) if self.readonly else info
