# SPDX-License-Identifier: Apache-2.0
"""Which reader breaks which rule. `readers` has them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weight_readers import ReaderInfo

READERS: dict[str, tuple[str, type]] = {}
"""Rule -> the base that declares for it, and the reader."""

MIB = 1 << 20
OPTIONS: dict[str, dict[str, Any]] = {"owned": {"copy": True}, "into": {"max_in_flight_bytes": MIB, "num_threads": 2}}
"""What a base is made with; the readers of the others take no options, or need none."""


def breaks(rule: str, base: str = "mapped") -> Callable[[type], type]:
    """The class is the reader that breaks this rule; ``base`` as in `hooks`."""

    def note(reader: type) -> type:
        READERS[f"test_{rule}"] = base, reader
        return reader

    return note


def make(rule: str, info: ReaderInfo) -> Any:
    base, kind = READERS[rule]
    reader = kind(**OPTIONS.get(base, {}))
    changed = rule == "test_made_without_options_it_is_what_it_declared"
    reader.info = replace(info, summary="something else") if changed else info
    return reader
