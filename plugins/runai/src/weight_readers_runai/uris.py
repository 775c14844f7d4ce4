# SPDX-License-Identifier: Apache-2.0
"""Which files are objects of a store, and which lie on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_URI = re.compile(r"(?P<scheme>s3|gs|az)://(?P<bucket>[^/]*)/?(?P<key>.*)", re.DOTALL)


class Uri(NamedTuple):
    """``s3://bucket/key``; the key may be empty."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, path: str) -> Uri | None:
        """The parts of a URI that the native library takes for an object; None for all that is a file to it."""
        match = _URI.fullmatch(path)
        return cls(match["scheme"], match["bucket"], match["key"]) if match else None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def scheme_of(path: str) -> str:
    uri = Uri.parse(path)
    return uri.scheme if uri else "file"


def common_scheme(paths: Iterable[str]) -> str:
    """The one scheme of all paths. Raises ValueError where there are two: the library reads one kind at a time."""
    first: dict[str, str] = {}
    for path in paths:
        first.setdefault(scheme_of(path), path)
    if len(first) > 1:
        raise ValueError(
            f"files of one checkpoint must lie in one kind of place, not in {' and '.join(first.values())}"
        )
    return next(iter(first), "file")
