# SPDX-License-Identifier: Apache-2.0
"""Weight files grouped by the pattern of their names: what belongs together, and what is no weights at all.

model.safetensors, model.fp16.safetensors              single, with and without a variant
model-00001-of-00002.safetensors                       shards
model.fp16-00001-of-00002.safetensors                  shards of a variant, in both ways of writing it
model-00001-of-00002.fp16.safetensors
model-rank-0-part-0.safetensors                        ranks: split before saving, one part per rank
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from weight_readers_loader.resolve.formats import SUFFIXES, format_by_name
from weight_readers_loader.resolve.listing import natural_key

__all__ = [
    "ADAPTER_TIER",
    "VARIANTS",
    "Family",
    "IndexName",
    "Series",
    "Survey",
    "WeightName",
    "parse_index_name",
    "parse_weight_name",
    "survey",
]

VARIANTS = frozenset(["fp32", "fp16", "bf16", "fp8", "fp4", "nf4", "int8", "int4", "8bit", "4bit", "ema", "non_ema"])
"""What is taken for a variant without being asked for: ``qwen2.5.safetensors`` has none."""

Kind = Literal["single", "shards", "ranks"]

# Six digits are the most that is in use (model-00001-of-000163).
_NUMBERED = re.compile(r"(?P<stem>.+?)-(?P<number>[0-9]{1,6})-of-(?P<total>[0-9]{1,6})(?P<tail>\.[^.]+)?")
_RANK = re.compile(r"(?P<stem>.+)-rank-(?P<rank>[0-9]{1,6})-part-(?P<part>[0-9]{1,6})")
_INDEX = re.compile(r"(?P<stem>.+)(?P<suffix>\.[a-z]+)\.index(?:\.(?P<variant>[^.]+))?\.json")

_SHARD_NUMBER = re.compile(r"(?<=-)([0-9]+)(?=-of-)")
_PART_NUMBER = re.compile(r"(?<=-part-)([0-9]+)(?=\.)")

_LEFTOVERS = (
    (re.compile(r"(optimizer|optim|scheduler|scaler|sampler)(_states?)?([._-]?[0-9]+)*"), "state of a training run"),
    (re.compile(r"(training_args|trainer_state|(rng|random)_states?)([._-]?[0-9]+)*"), "state of a training run"),
    (re.compile(r".*_optim_states"), "state of a training run"),
    (re.compile(r"openvino_.*"), "weights of an OpenVINO graph"),
    (
        re.compile(r"(?!.*[._-]i?q[0-9])(imatrix([._-].+)?|.+[._-]imatrix)", re.IGNORECASE),
        "an importance matrix, which is no weights",
    ),
)
_SECONDARY = (
    (re.compile(r"consolidated([._-].*)?"), "a second copy under its publisher's own names"),
    (re.compile(r"adapter_model|adapters|pytorch_lora_weights"), "an adapter, not the weights of the model"),
    (re.compile(r"(.+[._-])?mmproj([._-].+)?", re.IGNORECASE), "a projector of images, not the model that it serves"),
)

ADAPTER_TIER = 2
"""The tier of adapters in `_SECONDARY`: they are no weights of a model, whatever their format."""


@dataclass(frozen=True, kw_only=True)
class WeightName:
    """The parts of one weight file's name; ``number`` is its shard number, or its part on ``rank``."""

    name: str
    format: str
    stem: str
    variant: str | None = None
    number: int | None = None
    total: int | None = None
    rank: int | None = None

    @property
    def kind(self) -> Kind:
        return "shards" if self.total is not None else "single" if self.rank is None else "ranks"


@dataclass(frozen=True, kw_only=True)
class IndexName:
    """The parts of one index's name; ``tier`` and ``standing`` as in `Family`."""

    name: str
    format: str
    stem: str
    variant: str | None = None
    tier: int = 0
    standing: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def title(self) -> str:
        return self.name


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


def parse_weight_name(name: str, *, variant: str | None = None) -> WeightName | None:
    """Take a file name apart; None if its suffix is not that of a weight file. ``variant`` is the one asked for."""
    form = format_by_name(name)
    if form is None:
        return None
    base = name.rpartition(".")[0]
    if match := _NUMBERED.fullmatch(base):
        stem, found = _split_variant(match["stem"] + (match["tail"] or ""), form, variant)
        number, total = int(match["number"]), int(match["total"])
        return WeightName(name=name, format=form, stem=stem, variant=found, number=number, total=total)
    if match := _RANK.fullmatch(base):
        rank, part = int(match["rank"]), int(match["part"])
        return WeightName(name=name, format=form, stem=match["stem"], number=part, rank=rank)
    stem, found = _split_variant(base, form, variant)
    return WeightName(name=name, format=form, stem=stem, variant=found)


def parse_index_name(name: str, *, variant: str | None = None) -> IndexName | None:
    """Take an index's name apart, in both ways of writing a variant; None if it is not the name of an index."""
    match = _INDEX.fullmatch(name)
    form = SUFFIXES.get(match["suffix"]) if match else None
    if match is None or form is None:
        return None
    stem, inner = _split_variant(match["stem"], form, variant)
    tier, standing = _standing(stem)
    return IndexName(name=name, format=form, stem=stem, variant=match["variant"] or inner, tier=tier, standing=standing)


def _split_variant(stem: str, form: str, asked: str | None) -> tuple[str, str | None]:
    head, _, token = stem.rpartition(".")
    # The GGUF files of one folder differ in their quantization, which their names write in their own way.
    if head and form != "gguf" and (token == asked or token in VARIANTS):
        return head, token
    return stem, None


def survey(names: Iterable[str], *, variant: str | None = None) -> Survey:
    """Group ``names`` into families, each in natural order; families in the order of their first members."""
    ordered = sorted(names, key=natural_key)
    weights = [w for w in (parse_weight_name(name, variant=variant) for name in ordered) if w is not None]
    left_out = {w.name: reason for w in weights if (reason := _why_no_weights(w)) is not None}
    groups: defaultdict[tuple[object, ...], list[WeightName]] = defaultdict(list)
    for weight in weights:
        if weight.name not in left_out:
            groups[_group(weight)].append(weight)
    return Survey(
        families=tuple(_family(members) for members in groups.values()),
        indexes=tuple(index for name in ordered if (index := _visible_index(name, variant)) is not None),
        left_out=tuple(left_out.items()),
    )


def _visible_index(name: str, variant: str | None) -> IndexName | None:
    return None if name.startswith(".") else parse_index_name(name, variant=variant)


def _group(weight: WeightName) -> tuple[object, ...]:
    return weight.format, weight.kind, weight.stem, weight.variant, weight.total


def _family(members: list[WeightName]) -> Family:
    first = members[0]
    tier, standing = _standing(first.stem)
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


def _standing(stem: str) -> tuple[int, str | None]:
    matches = ((tier, what) for tier, (pattern, what) in enumerate(_SECONDARY, 1) if pattern.fullmatch(stem))
    return next(matches, (0, None))


def _why_no_weights(weight: WeightName) -> str | None:
    if weight.name.startswith("."):
        return "a hidden file"
    return next((what for pattern, what in _LEFTOVERS if pattern.fullmatch(weight.stem)), None)
