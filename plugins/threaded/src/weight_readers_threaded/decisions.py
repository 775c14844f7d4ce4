# SPDX-License-Identifier: Apache-2.0
"""What ``direct_io="auto"`` decided about the page cache, and by which facts, in sentences for the report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

SHARE = "{share:.0%} of {files} was in it"
UNKNOWN = "the kernel does not tell how much of {files} is in it"
NO_DIRECT_READS = "the file system of {files} has no direct reads"


@dataclass(frozen=True, kw_only=True)
class Decided:
    """How one file is read: ``direct`` is past the page cache. ``cached`` is the share of its ``nbytes`` in it."""

    direct: bool
    fact: str
    nbytes: int
    cached: float = 0.0


def said(decided: Collection[Decided]) -> tuple[str, ...]:
    """A sentence for each way and fact, over all files that it was so for."""
    alike: dict[tuple[bool, str], list[Decided]] = {}
    for each in decided:
        alike.setdefault((not each.direct, each.fact), []).append(each)
    return tuple(_sentence(alike[key], len(decided)) for key in sorted(alike))


def _sentence(alike: Sequence[Decided], total: int) -> str:
    way = "past" if alike[0].direct else "through"
    files = "the files" if len(alike) == total else f"{len(alike)} of {total} files"
    nbytes = sum(each.nbytes for each in alike)
    share = sum(each.cached * each.nbytes for each in alike) / nbytes if nbytes else 1.0
    return f"read {way} the page cache: {alike[0].fact.format(files=files, share=share)}"
