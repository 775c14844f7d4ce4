# SPDX-License-Identifier: Apache-2.0
"""What is chosen among the formats, variants and families that lie in one place; a second candidate is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weight_readers import file_formats
from weight_readers.errors import (
    AmbiguousCheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    ForeignContentError,
    MissingShardError,
)
from weight_readers_loader.arguments import instance, whole
from weight_readers_loader.resolve.families import Family, Series, Survey
from weight_readers_loader.resolve.file_names import ADAPTER_TIER, IndexName
from weight_readers_loader.resolve.formats import file_format
from weight_readers_loader.resolve.hub.cache import fetched_again
from weight_readers_loader.resolve.listing import Listing
from weight_readers_loader.resolve.no_weights import no_weights, suffixes
from weight_readers_loader.wording import passing, some

__all__ = [
    "Asked",
    "Item",
    "choose_families",
    "of_best_tier",
    "of_format",
    "of_variant",
    "promised",
    "some_of",
    "variant_text",
]

Item = Family | IndexName

_CANONICAL = frozenset(["model", "diffusion_pytorch_model", "pytorch_model"])

_MANY = 100  # so many missing files are one error each
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the caller asked for. It is kept or refused, never swapped for something else."""

    variant: str | None = None
    format: str | None = None
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        instance("variant", self.variant, str, "a str", or_none=True)
        check_format(self.format)
        whole("rank", self.rank)
        whole("world_size", self.world_size, least=1)
        if (self.rank is None) != (self.world_size is None):
            raise ValueError("rank and world_size are given together or not at all")
        if self.rank is not None and self.world_size is not None and not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be between 0 and world_size - 1 = {self.world_size - 1}, not {self.rank}")

    def require(self, path: str, *, format: str, variant: str | None) -> None:  # noqa: A002
        """Refuse the one file at ``path`` where it is not what was asked for."""
        if self.format not in (None, format):
            raise ForeignContentError(
                "the file is not of the format that was asked for",
                path=path,
                expected=self.format,
                found=format,
                fix=f"{passing('use_format', format)}, or give another file.",
            )
        if self.variant not in (None, variant):
            raise CheckpointNotFoundError(
                "the file is not of the variant that was asked for",
                path=path,
                expected=f"variant {self.variant!r}",
                found=variant_text(variant),
                fix="Leave out variant= (--variant), or give another file.",
            )


def check_format(name: str | None) -> None:
    """Raise ConfigError for a format that no installed reader declares, FormatConflictError for one in dispute."""
    if name is None:
        return
    known = file_formats().names
    if name not in known:
        raise ConfigError(
            f"use_format must be one of {list(known)}, not {name!r}",
            option="use_format",
            fix="A format of others comes with its reader: pip install DISTRIBUTION, "
            "and `weight-readers list` shows what it reads",
        )
    file_format(name)


def of_format(listing: Listing, seen: Survey, asked: str | None) -> list[Item]:
    """The items of the asked format; of the best format where none is asked."""
    items: list[Item] = [*seen.indexes, *seen.families]
    # An adapter in a better format does not push the model's own weights aside.
    items.sort(key=_standing)
    form = asked or _best_format(listing, items)
    if chosen := [item for item in items if item.format == form]:
        return chosen
    if not items and (known := no_weights(listing)):
        raise known
    others = [f"{item.title} (format {item.format})" for item in items]
    fix = (
        f"{passing('use_format', items[0].format)}, or convert the files."
        if items
        else "Give the folder that has them."
    )
    raise CheckpointNotFoundError(
        f"no {asked or 'weight'} files here",
        path=listing.root,
        expected=suffixes(asked),
        found=some(others or [*listing.names(), *(f"{folder}/" for folder in listing.folders())]),
        fix=fix,
    )


def _standing(item: Item) -> tuple[bool, int]:
    return item.tier == ADAPTER_TIER, file_formats().rank(item.format)


def _best_format(listing: Listing, items: Sequence[Item]) -> str | None:
    """The format of the first; among formats of others nothing says which one is meant."""
    found = dict.fromkeys(item.format for item in items if _standing(item) == _standing(items[0]))
    rivals = [file_format(each).name for each in found]
    if len(rivals) > 1:
        raise AmbiguousCheckpointError(
            "weights of several formats, and nothing says which one is meant",
            path=listing.root,
            expected="one",
            found=some(rivals),
            fix=f"{passing('use_format', rivals[0])}, or another of them.",
        )
    return rivals[0] if rivals else None


def of_variant(listing: Listing, items: Sequence[Item], asked: str | None) -> list[Item]:
    """The items of the asked variant; of no variant where none is asked."""
    if chosen := [item for item in items if item.variant == asked]:
        return chosen
    here = sorted({item.variant for item in items if item.variant})
    raise CheckpointNotFoundError(
        f"no {items[0].format} weights of {variant_text(asked)} here",
        path=listing.root,
        expected=variant_text(asked),
        found=", ".join(variant_text(v) for v in ([None] if any(not i.variant for i in items) else []) + here),
        fix=f"{passing('variant', here[0])}." if here else "Leave out variant= (--variant).",
    )


def of_best_tier(listing: Listing, items: Sequence[Item]) -> IndexName | list[Family]:
    """The index that decides, or the families to choose among where there is no index."""
    tier = min(item.tier for item in items)
    indexes = [item for item in items if item.tier == tier and isinstance(item, IndexName)]
    if len(indexes) > 1:
        raise _ambiguous(listing, "several indexes, and nothing says which one is meant", indexes)
    return indexes[0] if indexes else [i for i in items if i.tier == tier and isinstance(i, Family)]


def choose_families(listing: Listing, families: Sequence[Family]) -> list[Family]:
    """The families that are read together, of those that have one format, variant and standing."""
    several = [family for family in families if family.kind != "single"]
    singles = [family for family in families if family.kind == "single"]
    canonical = [family for family in singles if family.stem in _CANONICAL]
    rivals = [*several, *canonical]
    if len(rivals) > 1:
        raise _ambiguous(listing, "more than one checkpoint, and no index says which one is meant", rivals)
    if rivals or len(singles) == 1:
        return rivals or singles
    if not file_format(singles[0].format).loose_files:
        raise _ambiguous(listing, "several checkpoints of one file each", singles)
    return singles


def _ambiguous(listing: Listing, what: str, items: Sequence[Item]) -> AmbiguousCheckpointError:
    quantized = all(item.format == "gguf" for item in items)
    choose = "Give the file that is meant, or its quantization behind the reference (REF:Q4_K_M)."
    return AmbiguousCheckpointError(
        what,
        path=listing.root,
        expected="one",
        found=some([item.title for item in items]),
        fix=choose if quantized else "Give the file that is meant, or move the others out of the folder.",
    )


def promised(listing: Listing, family: Family, asked: Asked) -> tuple[tuple[str, ...], MissingShardError | None]:
    """The names that make the family whole, present or not.

    Where very many are missing, those that are present, and one error for the others: no look at each of them.
    """
    if family.kind == "single":
        return family.names, None
    series = _of_rank(listing, family, asked) if family.kind == "ranks" else _shards(listing, family)
    if series.missing > _MANY:
        return series.present, _flood(listing, series)
    return series.names(), None


def _shards(listing: Listing, family: Family) -> Series:
    series = family.shards()
    fitting = set(series.present)
    if odd := [name for name in family.names if name not in fitting]:
        raise AmbiguousCheckpointError(
            "shards that do not fit the numbering of the others",
            path=listing.path_of(odd[0]),
            expected=f"one shard for each number up to {family.total}",
            found=some(odd),
            fix="Move them out of the folder.",
        )
    return series


def _flood(listing: Listing, series: Series) -> MissingShardError:
    return MissingShardError(
        f"{series.missing} of {len(series.numbers)} shards are missing",
        path=listing.root,
        expected=f"{len(series.numbers)} files, by the name of {series.members[0].name}",
        found="no " + some_of(series),
        fix=fetched_again(listing.root),
    )


def some_of(series: Series) -> str:
    """The first names of what a series lacks, and how many there are besides."""
    names = series.absent(_SHOWN)
    rest = series.missing - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def _of_rank(listing: Listing, family: Family, asked: Asked) -> Series:
    ranks = {member.rank or 0 for member in family.members}
    count = max(ranks) + 1
    if (asked.world_size or 1) != count:
        raise AmbiguousCheckpointError(
            "the checkpoint was split per rank before it was saved",
            path=listing.root,
            expected=f"rank and world_size={count}",
            found="neither" if asked.world_size is None else f"world_size={asked.world_size}",
            fix=f"Load it with {count} ranks and pass rank= and world_size= (--rank, --world-size), or save it again "
            "without the split.",
        )
    if absent := [str(rank) for rank in range(count) if rank not in ranks]:
        raise MissingShardError(
            "the files of a rank are missing",
            path=listing.root,
            expected=f"ranks 0 to {count - 1}",
            found=f"no files of rank {some(absent)}",
            fix=fetched_again(listing.root),
        )
    return family.parts_of(asked.rank or 0)


def variant_text(variant: str | None) -> str:
    return "no variant" if variant is None else f"variant {variant!r}"
