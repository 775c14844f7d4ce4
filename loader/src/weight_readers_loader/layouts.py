# SPDX-License-Identifier: Apache-2.0
"""Which files are one checkpoint. The rules are written down in docs/decisions/0003.

A listing is surveyed, then narrowed in this order: format, variant, standing, index, family. What is left out is
said with its reason; what is left over twice is an error, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weight_readers.errors import (
    AmbiguousCheckpointError,
    BadIndexError,
    CheckpointNotFoundError,
    ForeignContentError,
    MissingShardError,
)
from weight_readers_loader.families import (
    ADAPTER_TIER,
    Family,
    IndexName,
    Survey,
    parse_index_name,
    parse_weight_name,
    survey,
)
from weight_readers_loader.formats import FORMATS, HEAD_BYTES, SUFFIXES, format_by_name, format_of, require_format
from weight_readers_loader.index import Index, read_index
from weight_readers_loader.listing import LayoutFile, Listing, natural_key, readable_files, usable_files
from weight_readers_loader.references import Located

__all__ = ["Layout", "LayoutFile", "resolve_layout"]

_CANONICAL = frozenset(["model", "diffusion_pytorch_model", "pytorch_model"])
_LOOSE_IS_A_SET = frozenset(["safetensors"])  # several .gguf or .pt files are as many models
_SHOWN = 10

_Item = Family | IndexName


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of one checkpoint, in natural order, and what was decided on the way to them.

    ``left_out`` holds ``(name, reason)`` for every weight file and index that lies there and is not read;
    ``unindexed`` are those of them that may hold weights of this model which the index does not know of;
    ``notices`` are the sentences a user should see.
    """

    format: str
    root: str
    files: tuple[LayoutFile, ...]
    index: Index | None = None
    variant: str | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    unindexed: tuple[LayoutFile, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of ``files``, as readers take them."""
        return tuple(file.path for file in self.files)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    variant: str | None
    format: str | None
    rank: int | None
    world_size: int | None

    def __post_init__(self) -> None:
        if self.format not in (None, *FORMATS):
            raise ValueError(f"use_format must be one of {list(FORMATS)}, not {self.format!r}")
        if (self.rank is None) != (self.world_size is None):
            raise ValueError("rank and world_size are given together or not at all")
        if self.rank is not None and self.world_size is not None and not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be between 0 and world_size - 1 = {self.world_size - 1}, not {self.rank}")


def resolve_layout(
    located: Located,
    *,
    variant: str | None = None,
    use_format: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Layout:
    """The files of the checkpoint at ``located``.

    ``variant`` and ``use_format`` are kept or refused, never swapped for another; ``rank`` and ``world_size``
    matter only to checkpoints that were split per rank before they were saved.

    Raises CheckpointNotFoundError (no weights, or not of that format or variant), AmbiguousCheckpointError,
    BadIndexError, UnsafePathError, MissingShardError, UnreadableFileError, EmptyFileError, ForeignContentError;
    CheckpointProblems where several files are wrong; ValueError for arguments out of range.
    """
    asked = _Asked(variant=variant, format=use_format, rank=rank, world_size=world_size)
    if located.name is None:
        return _of_folder(located.listing, asked)
    index = parse_index_name(located.name, variant=variant)
    if index is None:
        return _of_file(located.listing, located.name, asked)
    _require(asked, located.path, format=index.format, variant=index.variant)
    return _of_index(located.listing, survey(located.listing.names(), variant=variant), index)


def _of_file(listing: Listing, name: str, asked: _Asked) -> Layout:
    """One file that was named: it is read, whatever lies beside it, and its content says what it is."""
    (file,) = usable_files(listing, [name], of=listing.root, expected="the file that was given")
    verdict = format_of(name, listing.read_bytes(name, HEAD_BYTES))
    form = require_format(verdict, path=file.path)
    parsed = parse_weight_name(name, variant=asked.variant)
    variant = parsed.variant if parsed else None
    _require(asked, file.path, format=form, variant=variant)
    notices = [verdict.note] if verdict.note else []
    if parsed is not None and parsed.kind != "single":
        part = (
            f"shard {parsed.number} of {parsed.total}" if parsed.kind == "shards" else f"a part of rank {parsed.rank}"
        )
        notices.append(f"{name} is {part}, and only it is read; give the folder to read all of them")
    return Layout(format=form, root=listing.root, files=(file,), variant=variant, notices=tuple(notices))


def _require(asked: _Asked, path: str, *, format: str, variant: str | None) -> None:  # noqa: A002
    if asked.format not in (None, format):
        raise ForeignContentError(
            "the file is not of the format that was asked for",
            path=path,
            expected=asked.format,
            found=format,
            fix=f"Pass use_format={format!r}, or give another file.",
        )
    if asked.variant not in (None, variant):
        raise CheckpointNotFoundError(
            "the file is not of the variant that was asked for",
            path=path,
            expected=f"variant {asked.variant!r}",
            found=_variant_text(variant),
            fix="Leave out variant=, or give another file.",
        )


def _of_folder(listing: Listing, asked: _Asked) -> Layout:
    seen = survey(listing.names(), variant=asked.variant)
    found = _of_variant(listing, _of_format(listing, seen, asked.format), asked.variant)
    tier = min(item.tier for item in found)
    indexes = [item for item in found if item.tier == tier and isinstance(item, IndexName)]
    if len(indexes) > 1:
        raise _ambiguous(listing, "several indexes, and nothing says which one is meant", indexes)
    if indexes:
        return _of_index(listing, seen, indexes[0])
    families = [item for item in found if item.tier == tier and isinstance(item, Family)]
    return _of_families(listing, seen, _choose_families(listing, families), asked)


def _of_format(listing: Listing, seen: Survey, asked: str | None) -> list[_Item]:
    items: list[_Item] = [*seen.indexes, *seen.families]
    # An adapter in a better format does not push the model's own weights aside.
    items.sort(key=lambda item: (item.tier == ADAPTER_TIER, FORMATS.index(item.format)))
    form = asked or (items[0].format if items else None)
    if chosen := [item for item in items if item.format == form]:
        return chosen
    others = [f"{item.title} (format {item.format})" for item in items]
    fix = f"Pass use_format={items[0].format!r}, or convert the files." if items else "Give the folder that has them."
    raise CheckpointNotFoundError(
        f"no {asked or 'weight'} files here",
        path=listing.root,
        expected=" or ".join(f"*{suffix}" for suffix, of in SUFFIXES.items() if asked in (None, of)),
        found=_some(others or [*listing.names(), *(f"{folder}/" for folder in listing.folders())]),
        fix=fix,
    )


def _of_variant(listing: Listing, items: Sequence[_Item], asked: str | None) -> list[_Item]:
    if chosen := [item for item in items if item.variant == asked]:
        return chosen
    here = sorted({item.variant for item in items if item.variant})
    raise CheckpointNotFoundError(
        f"no {items[0].format} weights of {_variant_text(asked)} here",
        path=listing.root,
        expected=_variant_text(asked),
        found=", ".join(_variant_text(v) for v in ([None] if any(not i.variant for i in items) else []) + here),
        fix=f"Pass variant={here[0]!r}." if here else "Leave out variant=.",
    )


def _choose_families(listing: Listing, families: Sequence[Family]) -> list[Family]:
    """The families that are read together, of those that have one format, variant and standing."""
    several = [family for family in families if family.kind != "single"]
    singles = [family for family in families if family.kind == "single"]
    canonical = [family for family in singles if family.stem in _CANONICAL]
    rivals = [*several, *canonical]
    if len(rivals) > 1:
        raise _ambiguous(listing, "more than one checkpoint, and no index says which one is meant", rivals)
    if rivals or len(singles) == 1:
        return rivals or singles
    if singles[0].format not in _LOOSE_IS_A_SET:
        raise _ambiguous(listing, "several checkpoints of one file each", singles)
    return singles


def _ambiguous(listing: Listing, what: str, items: Sequence[_Item]) -> AmbiguousCheckpointError:
    return AmbiguousCheckpointError(
        what,
        path=listing.root,
        expected="one",
        found=_some([item.title for item in items]),
        fix="Give the file that is meant, or move the others out of the folder.",
    )


def _of_families(listing: Listing, seen: Survey, families: Sequence[Family], asked: _Asked) -> Layout:
    first = families[0]
    names = [name for family in families for name in _promised(listing, family, asked)]
    expected = "a file" if first.kind == "single" else "a file, by the numbering of the others"
    files = usable_files(listing, names, of=listing.root, expected=expected)
    left_out = _left_out(seen, names, first, f"no part of {first.title}")
    notices = _said(left_out)
    if first.tier:
        notices = (
            f"{first.title} is {first.standing}; no other {first.format} weights are here, so it is read",
            *notices,
        )
    return Layout(
        format=first.format,
        root=listing.root,
        files=files,
        variant=first.variant,
        left_out=tuple((out.name, out.reason) for out in left_out),
        notices=notices,
    )


def _promised(listing: Listing, family: Family, asked: _Asked) -> tuple[str, ...]:
    """The names that make the family whole, present or not."""
    if family.kind == "ranks":
        return _of_rank(listing, family, asked)
    promised = family.numbered()
    if odd := [name for name in family.names if name not in promised]:
        raise AmbiguousCheckpointError(
            "shards that do not fit the numbering of the others",
            path=listing.path_of(odd[0]),
            expected=f"one shard for each number up to {family.total}",
            found=_some(odd),
            fix="Move them out of the folder.",
        )
    return promised


def _of_rank(listing: Listing, family: Family, asked: _Asked) -> tuple[str, ...]:
    ranks = {member.rank or 0 for member in family.members}
    count = max(ranks) + 1
    if (asked.world_size or 1) != count:
        raise AmbiguousCheckpointError(
            "the checkpoint was split per rank before it was saved",
            path=listing.root,
            expected=f"rank and world_size={count}",
            found="neither" if asked.world_size is None else f"world_size={asked.world_size}",
            fix=f"Load it with {count} ranks and pass rank= and world_size=, or save it again without the split.",
        )
    if absent := [str(rank) for rank in range(count) if rank not in ranks]:
        raise MissingShardError(
            "the files of a rank are missing",
            path=listing.root,
            expected=f"ranks 0 to {count - 1}",
            found=f"no files of rank {_some(absent)}",
            fix="Download the whole checkpoint again.",
        )
    return family.parts_of(asked.rank or 0)


def _of_index(listing: Listing, seen: Survey, item: IndexName) -> Layout:
    index = read_index(listing, item.name)
    if foreign := [name for name in index.shards if format_by_name(name) not in (None, item.format)]:
        raise BadIndexError(
            "the index names files of another format",
            path=index.path,
            expected=item.format,
            found=_some(foreign),
            fix="Get the index that belongs to the files.",
        )
    files = _files_of_index(listing, index, seen)
    left_out = _left_out(seen, [item.name, *index.shards], item, f"not named by the index {item.name}")
    return Layout(
        format=item.format,
        root=listing.root,
        files=files,
        index=index,
        variant=item.variant,
        left_out=tuple((out.name, out.reason) for out in left_out),
        unindexed=readable_files(listing, [out.name for out in left_out if out.could_belong]),
        notices=(*_gaps(index), *_said(left_out)),
    )


@dataclass(frozen=True, kw_only=True)
class _LeftOut:
    name: str
    reason: str
    said: bool = True
    could_belong: bool = False


def _left_out(seen: Survey, taken: Iterable[str], chosen: _Item, rest: str) -> list[_LeftOut]:
    """Everything that was surveyed and not taken. Training state and other variants are nothing to talk about."""
    names = set(taken)
    found = [_LeftOut(name=name, reason=reason, said=False) for name, reason in seen.left_out]
    items: tuple[_Item, ...] = (*seen.families, *seen.indexes)
    for item in items:
        found += [_reason_for(name, item, chosen, rest) for name in item.names if name not in names]
    return sorted(found, key=lambda out: natural_key(out.name))


def _reason_for(name: str, item: _Item, chosen: _Item, rest: str) -> _LeftOut:
    if item.format != chosen.format:
        return _LeftOut(name=name, reason=f"of format {item.format}, and {chosen.format} is read")
    if item.variant != chosen.variant:
        reason = f"of {_variant_text(item.variant)}, and {_variant_text(chosen.variant)} is read"
        return _LeftOut(name=name, reason=reason, said=False)
    if item.standing is not None:
        return _LeftOut(name=name, reason=item.standing)
    if isinstance(item, IndexName):
        return _LeftOut(name=name, reason="another index")
    return _LeftOut(name=name, reason=rest, could_belong=True)


def _said(left_out: Sequence[_LeftOut]) -> tuple[str, ...]:
    reasons = dict.fromkeys(out.reason for out in left_out if out.said)
    return tuple(_notice(reason, [out.name for out in left_out if out.reason == reason]) for reason in reasons)


def _notice(reason: str, names: Sequence[str]) -> str:
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    return f"{files} left out, {reason}: {_some(names)}"


def _gaps(index: Index) -> Iterable[str]:
    """A notice for shards that have a number in a series of which the index names a part only."""
    for family in survey(index.shards).families:
        if unnamed := [name for name in family.numbered() if name not in family.names]:
            yield f"the index {index.name} names {family.title}, and not {_some(unnamed)}"


def _files_of_index(listing: Listing, index: Index, seen: Survey) -> tuple[LayoutFile, ...]:
    return usable_files(
        listing,
        index.shards,
        of=index.path,
        expected=f"a file, named by {index.name}",
        instead=lambda name: _of_other_upload(name, seen),
    )


def _of_other_upload(name: str, seen: Survey) -> str | None:
    """The weights that are here where not one shard of the index's own numbering is (Neph0s/CoSER#3)."""
    wanted = parse_weight_name(name)
    if wanted is None:
        return None
    others = [f for f in seen.families if f.format == wanted.format and not f.tier]
    if any((f.stem, f.total) == (wanted.stem, wanted.total) for f in others):
        return None
    numbering = re.search("-of-[0-9]+", name)
    speaks = f"; the index speaks of {numbering[0]}" if numbering else ""
    return _some([family.title for family in others]) + speaks if others else None


def _variant_text(variant: str | None) -> str:
    return "no variant" if variant is None else f"variant {variant!r}"


def _some(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
