# SPDX-License-Identifier: Apache-2.0
"""The order of shards: natural, and the same on every rank."""

from __future__ import annotations

import os
import re

from weight_readers.reader import Files

NaturalKey = tuple[tuple[str | tuple[int, str], ...], str]


def natural_key(name: str | os.PathLike[str]) -> NaturalKey:
    """Sort key that puts ``model-2`` before ``model-10``; any name has one, and no two names share one.

    Depends on the name alone, so the order is the same on every rank.
    """
    text = os.fspath(name)
    # Odd places are runs of digits, compared by length and then as text: no conversion, no limit on their length.
    parts = re.split(r"([0-9]+)", text)
    return tuple(_number(part) if place % 2 else part for place, part in enumerate(parts)), text


def _number(digits: str) -> tuple[int, str]:
    significant = digits.lstrip("0")
    return len(significant), significant


def natural_order(files: Files) -> list[str]:
    """The paths in natural order. Raises TypeError for a bare path, which is a sequence of letters too."""
    if isinstance(files, (str, bytes, os.PathLike)):
        raise TypeError(f"files must be a sequence of paths, not the single path {files!r}: write [{files!r}]")
    paths = sorted((os.fspath(file) for file in files), key=natural_key)
    if not paths:
        raise ValueError("files is empty: there is no checkpoint to read")
    return paths
