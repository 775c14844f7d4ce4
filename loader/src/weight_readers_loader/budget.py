# SPDX-License-Identifier: Apache-2.0
"""How much host memory a load may take: what was asked for, and never more than the machine has left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from weight_readers_loader.wording import size

BOUNDS = {"max_in_flight_bytes": 1, "memory_limit": 2}
"""What readers call the bytes that they have under way at most -> how many tensors they hold besides: the one that the
consumer has, and in the Run:ai streamer the one that is handed over (measured)."""

_MOST_BY_DEFAULT = 256 << 20
"""A reader of ours has no more under way unless it is told to."""


@dataclass(frozen=True, kw_only=True)
class HostBudget:
    """``nbytes`` of host memory, besides tensors that exist before the load; ``said`` tells where they come from.

    None is no limit, and nothing is counted.
    """

    nbytes: int | None
    said: str

    @classmethod
    def of(cls, asked: int | Literal["auto", "off"], left: int | None) -> HostBudget:
        """``left`` is what machine and cgroups have, None where that is not known: then "auto" is a ValueError."""
        if asked == "off":
            return cls(nbytes=None, said="off: nothing is counted")
        if asked == "auto":
            if left is None:
                raise ValueError("this system does not say how much memory is left: give a number of bytes for 'auto'")
            return cls(nbytes=left, said=f"{size(left)}, what the machine and its cgroups have left")
        if left is not None and left < asked:
            return cls(nbytes=left, said=f"{size(left)}, what is left here of the {size(asked)} that were asked for")
        return cls(nbytes=asked, said=f"{size(asked)}, as asked for")


def bounds(limit: int | None, largest: int | None) -> Mapping[str, int]:
    """Settings of readers that copy: with the ``largest`` tensor, which the consumer has, they fill the ``limit``."""
    if limit is None:
        return {}
    size_of_one = largest or 0
    under_way = {name: limit - held * size_of_one for name, held in BOUNDS.items()}
    return {name: max(1, size_of_one, left) for name, left in under_way.items() if left < _MOST_BY_DEFAULT}
