# SPDX-License-Identifier: Apache-2.0
"""Weight files grouped by the pattern of their names: what belongs together, and what is no weights at all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from weight_readers_loader.resolve.file_names import (
    IndexName,
    Kind,
    WeightName,
    parse_index_name,
    parse_weight_name,
    standing_of,
    why_no_weights,
)
from weight_readers_loader.resolve.listing import natural_key

__all__ = ["Family", "Series", "Survey", "survey"]

_SHARD_NUMBER = re.compile(r"(?<=-)([0-9]+)(?=-of-)")
_PART_NUMBER = re.compile(r"(?<=-part-)([0-9]+)(?=\.)")


@dataclass(frozen=True, kw_only=True)
class Series:
    """Files that are numbered: ``members`` are there, ``numbers`` are those that should be.

    A name can promise 999999 files: what is missing is counted, and spelled out only as far as somebody asks.
    """

    members: tuple[WeightName, ...]
    digits: re.Pattern[str]
    numbers: range

    @property
    def here(self) -> dict[int | None, str]:
        return {member.number: member.name for member in self.members}

    @property
    def present(self) -> tuple[str, ...]:
        here = self.here
        return tuple(here[number] for number in sorted(n for n in here if n is not None and n in self.numbers))

    @property
    def missing(self) -> int:
        return len(self.numbers) - len(self.present)

    def absent(self, most: int) -> tuple[str, ...]:
        """The first names that should be there and are not, written as those that are."""
        here = self.here
        before, digits, after = self.digits.split(self.members[0].name, maxsplit=1)
        numbers = islice((n for n in self.numbers if n not in here), most)
        return tuple(f"{before}{n:0{len(digits)}}{after}" for n in numbers)

    def names(self) -> tuple[str, ...]:
        """All of them, present or not."""
        return tuple(sorted((*self.present, *self.absent(self.missing)), key=natural_key))


@dataclass(frozen=True, kw_only=True)
class Family:
    """Files that were saved together. ``tier`` is 0 for the weights of a model, more for what stands back for them,
    and then ``standing`` says what it is."""

    format: str
    kind: Kind
    stem: str
    variant: str | None
    total: int | None
    members: tuple[WeightName, ...]
    tier: int = 0
    standing: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def title(self) -> str:
        """The family in a few words, by the name of its first file."""
        first, count = self.members[0].name, len(self.members)
        if self.total is not None:
            return f"{first} ({count} of {self.total} shards)"
        return first if count == 1 else f"{first} ({count} files)"

    def shards(self) -> Series:
        """The shards that the numbering promises; it starts at 1, or at 0 if one does."""
        start = 0 if any(member.number == 0 for member in self.members) else 1
        return Series(members=self.members, digits=_SHARD_NUMBER, numbers=range(start, start + (self.total or 0)))

    def parts_of(self, rank: int) -> Series:
        """The parts of one rank up to the highest that is there."""
        parts = tuple(member for member in self.members if member.rank == rank)
        count = max((part.number or 0 for part in parts), default=-1) + 1
        return Series(members=parts, digits=_PART_NUMBER, numbers=range(count))


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All weight files and indexes of a listing; ``left_out`` are weight files by suffix only, with what they are."""

    families: tuple[Family, ...]
    indexes: tuple[IndexName, ...]
    left_out: tuple[tuple[str, str], ...]


def survey(names: Iterable[str], *, variant: str | None = None, form: str | None = None) -> Survey:
    """Group ``names`` into families, each in natural order; families in the order of their first members.

    ``variant`` and ``form`` are those that were asked for.
    """
    ordered = sorted(names, key=natural_key)
    weights = [w for w in (parse_weight_name(name, variant=variant, form=form) for name in ordered) if w is not None]
    left_out = {w.name: reason for w in weights if (reason := why_no_weights(w)) is not None}
    groups: defaultdict[tuple[object, ...], list[WeightName]] = defaultdict(list)
    for weight in weights:
        if weight.name not in left_out:
            groups[_group(weight)].append(weight)
    return Survey(
        families=tuple(_family(members) for members in groups.values()),
        indexes=tuple(index for name in ordered if (index := _visible_index(name, variant, form)) is not None),
        left_out=tuple(left_out.items()),
    )


def _visible_index(name: str, variant: str | None, form: str | None) -> IndexName | None:
    return None if name.startswith(".") else parse_index_name(name, variant=variant, form=form)


def _group(weight: WeightName) -> tuple[object, ...]:
    return weight.format, weight.kind, weight.stem, weight.variant, weight.total


def _family(members: list[WeightName]) -> Family:
    first = members[0]
    tier, standing = standing_of(first.stem)
    return Family(
        format=first.format,
        kind=first.kind,
        stem=first.stem,
        variant=first.variant,
        total=first.total,
        members=tuple(members),
        tier=tier,
        standing=standing,
    )
