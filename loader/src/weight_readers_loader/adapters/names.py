# SPDX-License-Identifier: Apache-2.0
"""Adapters of names: a prefix for each source, and names or patterns replaced. Tensors stay as they are, packed too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from weight_readers_loader.adapters.made import Adapter, Made, Tensors, check_patterns, refused, renamed


class Prefix(Adapter):
    """``add`` before every name, as the namespace of a component; ``strip`` is first taken from names that have it.

    Raises AdapterError where no name has ``strip``.
    """

    supports_packed = True

    def __init__(self, add: str = "", *, strip: str = "") -> None:
        if not isinstance(add, str) or not isinstance(strip, str):
            raise TypeError(f"a prefix must be a text, not {add if not isinstance(add, str) else strip!r}")
        if not add and not strip:
            raise ValueError("Prefix needs a prefix to add, to strip, or both")
        self.add, self.strip = add, strip

    def plan(self, tensors: Tensors) -> Iterator[Made]:
        for name, meta in tensors.items():
            yield renamed(meta, self.add + name.removeprefix(self.strip))

    def check(self, tensors: Tensors) -> None:
        if tensors and not any(name.startswith(self.strip) for name in tensors):
            first = next(iter(tensors.values()))
            raise refused(f"no name begins with the prefix to strip, {self.strip!r}", first)


class Rename(Adapter):
    """Names replaced: by ``names`` (old -> new) where a tensor is in it, else by the first pattern that is found.

    patterns: pairs of a regular expression and its replacement, as `re.sub` takes them. Names that neither has stay.

    Raises AdapterError for a name of ``names``, or a pattern, that no tensor has, and where two tensors get one name.
    """

    supports_packed = True

    def __init__(self, names: Mapping[str, str] | None = None, *, patterns: Sequence[Sequence[str]] = ()) -> None:
        self.names = dict(names or {})
        self.patterns = [_compiled(pair) for pair in patterns]
        if not self.names and not self.patterns:
            raise ValueError("Rename needs names or patterns")

    def plan(self, tensors: Tensors) -> Iterator[Made]:
        for name, meta in tensors.items():
            yield renamed(meta, self._new(name))

    def check(self, tensors: Tensors) -> None:
        check_patterns("Rename", [name.replace("[", "[[]") for name in self.names], tensors)
        for pattern, _ in self.patterns:
            if tensors and not any(pattern.search(name) for name in tensors):
                raise refused(
                    f"Rename has the pattern {pattern.pattern!r}, which no name has", next(iter(tensors.values()))
                )

    def _new(self, name: str) -> str:
        if name in self.names:
            return self.names[name]
        for pattern, replacement in self.patterns:
            new, count = pattern.subn(replacement, name)
            if count:
                return new
        return name


def _compiled(pair: Sequence[str]) -> tuple[re.Pattern[str], str]:
    if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise TypeError(f"a pattern must be a pair of an expression and its replacement, not {pair!r}")
    try:
        pattern = re.compile(pair[0])
        pattern.sub(pair[1], "")
    except re.error as error:
        raise ValueError(f"{pair!r} is no regular expression with its replacement: {error}") from error
    return pattern, pair[1]
