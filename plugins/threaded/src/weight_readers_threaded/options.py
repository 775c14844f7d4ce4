# SPDX-License-Identifier: Apache-2.0
"""The options of the reader: checked when it is made, with the name and the range in the error."""

from __future__ import annotations

from dataclasses import dataclass

from weight_readers_threaded.cpus import default_threads

DIRECT_IO = ("off", "on", "auto")
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sizes are in bytes. ``num_threads`` None is the default for this machine, ``chunk_bytes`` None for the load."""

    num_threads: int | None = None
    chunk_bytes: int | None = None
    max_in_flight_bytes: int = 256 * MIB
    direct_io: str = "off"
    huge_pages: bool = False

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            _whole("num_threads", self.num_threads, 1, 1024)
        if self.chunk_bytes is not None:
            _whole("chunk_bytes", self.chunk_bytes, 1, 1 << 30)
        _whole("max_in_flight_bytes", self.max_in_flight_bytes, 1, 1 << 50)
        if self.direct_io not in DIRECT_IO:
            raise ValueError(
                f"option 'direct_io' of reader 'threaded' must be one of {DIRECT_IO}, not {self.direct_io!r}"
            )

        if not isinstance(self.huge_pages, bool):
            raise TypeError(f"option 'huge_pages' of reader 'threaded' must be True or False, not {self.huge_pages!r}")

    @property
    def threads(self) -> int:
        """How many threads read, where there are as many requests."""
        return self.num_threads or default_threads()


def _whole(name: str, value: object, low: int, high: int) -> None:
    subject = f"option {name!r} of reader 'threaded'"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{subject} must be a whole number from {low} to {high}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{subject} must be from {low} to {high}, not {value}")
