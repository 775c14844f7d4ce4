# SPDX-License-Identifier: Apache-2.0
"""What lies beside a checkpoint: the files that are not read, each with its reason, and what to tell a person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from weight_readers_loader.resolve.choices import Item, some_of, variant_text
from weight_readers_loader.resolve.families import Survey, survey
from weight_readers_loader.resolve.file_names import IndexName, parse_weight_name
from weight_readers_loader.resolve.index import Index
from weight_readers_loader.resolve.listing import natural_key
from weight_readers_loader.wording import counted, some

__all__ = ["LeftOut", "gaps", "left_out", "notices", "of_other_upload"]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """One file that is not read. ``said`` tells whether a person should hear of it, ``could_belong`` whether it may
    hold weights of this model which the index does not know of."""

    name: str
    reason: str
    said: bool = True
    could_belong: bool = False


def left_out(seen: Survey, taken: Iterable[str], chosen: Item, rest: str) -> list[LeftOut]:
    """Everything that was surveyed and not taken. Training state and other variants are nothing to talk about."""
    names = set(taken)
    found = [LeftOut(name=name, reason=reason, said=False) for name, reason in seen.left_out]
    items: tuple[Item, ...] = (*seen.families, *seen.indexes)
    for item in items:
        found += [_reason_for(name, item, chosen, rest) for name in item.names if name not in names]
    return sorted(found, key=lambda out: natural_key(out.name))


def _reason_for(name: str, item: Item, chosen: Item, rest: str) -> LeftOut:
    if item.format != chosen.format:
        return LeftOut(name=name, reason=f"of format {item.format}, and {chosen.format} is read")
    if item.variant != chosen.variant:
        reason = f"of {variant_text(item.variant)}, and {variant_text(chosen.variant)} is read"
        return LeftOut(name=name, reason=reason, said=False)
    if item.standing is not None:
        return LeftOut(name=name, reason=item.standing)
    if isinstance(item, IndexName):
        return LeftOut(name=name, reason="another index")
    return LeftOut(name=name, reason=rest, could_belong=True)


def notices(found: Sequence[LeftOut]) -> tuple[str, ...]:
    """One sentence for each reason that a person should hear of."""
    reasons = dict.fromkeys(out.reason for out in found if out.said)
    return tuple(_notice(reason, [out.name for out in found if out.reason == reason]) for reason in reasons)


def _notice(reason: str, names: Sequence[str]) -> str:
    return f"{counted(len(names), 'file')} left out, {reason}: {some(names)}"


def gaps(index: Index) -> Iterator[str]:
    """A notice for shards that have a number in a series of which the index names a part only."""
    for family in survey(index.shards).families:
        if family.kind == "shards" and (series := family.shards()).missing:
            yield f"the index {index.name} names {family.title}, and not {some_of(series)}"


def of_other_upload(name: str, seen: Survey) -> str | None:
    """The weights that are here where not one shard of the index's own numbering is (Neph0s/CoSER#3)."""
    wanted = parse_weight_name(name)
    if wanted is None:
        return None
    others = [f for f in seen.families if f.format == wanted.format and not f.tier]
    if any((f.stem, f.total) == (wanted.stem, wanted.total) for f in others):
        return None
    numbering = re.search("-of-[0-9]+", name)
    speaks = f"; the index speaks of {numbering[0]}" if numbering else ""
    return some([family.title for family in others]) + speaks if others else None
