# SPDX-License-Identifier: Apache-2.0
"""Whether memory can be written to: to copy into a read-only mapping ends the process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress

import torch

_MAPS = "/proc/self/maps"


def require_writable(targets: Mapping[str, torch.Tensor]) -> None:
    """Raise TypeError for a target in host memory that this process must not write to, where the system tells."""
    begins = {target.data_ptr(): name for name, target in targets.items() if target.is_cpu and target.numel()}
    ordered = sorted(begins)
    for begin, end in _readonly_spans():
        at = bisect_left(ordered, begin)
        if at < len(ordered) and ordered[at] < end:
            raise TypeError(f"target {begins[ordered[at]]!r} is in memory that is mapped read-only: give a copy of it")


def _readonly_spans() -> Iterator[tuple[int, int]]:
    with suppress(OSError), open(_MAPS, encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, permissions, _ = line.split(" ", 2)
            if permissions[1] != "w":
                begin, end = span.split("-")
                yield int(begin, 16), int(end, 16)
