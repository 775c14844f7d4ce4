# SPDX-License-Identifier: Apache-2.0
"""Which files are one checkpoint. The rules are written down in docs/decisions/0003.

A listing is surveyed, then narrowed in this order: format, variant, standing, index, family. What is left out is
said with its reason; what is left over twice is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from weight_readers.errors import BadIndexError, CheckpointError, CheckpointProblems
from weight_readers_loader.resolve.choices import (
    Asked,
    choose_families,
    of_best_tier,
    of_format,
    of_variant,
    promised,
)
from weight_readers_loader.resolve.families import Family, Survey, survey
from weight_readers_loader.resolve.file_names import IndexName, parse_index_name, parse_weight_name
from weight_readers_loader.resolve.formats import (
    HEAD_BYTES,
    file_format,
    format_by_name,
    format_of,
    require_format,
)
from weight_readers_loader.resolve.index import Index, read_index
from weight_readers_loader.resolve.leftovers import gaps, left_out, notices, of_other_upload
from weight_readers_loader.resolve.listing import LayoutFile, Listing
from weight_readers_loader.resolve.places import Located
from weight_readers_loader.resolve.selectors import of_selector
from weight_readers_loader.resolve.usable import readable_files, sorted_out, usable_files
from weight_readers_loader.wording import some

__all__ = ["Layout", "LayoutFile", "LayoutOf", "Remote", "resolve_layout"]


class Remote(Protocol):
    """Where the files of a layout are, as long as they are not on this machine."""

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """The bytes ``begin:end`` of a file of the layout. Raises CheckpointError."""
        ...

    def bring(self, layout: Layout, *, show_progress: bool = False) -> Layout:
        """The layout with its files on this machine. Raises CheckpointError."""
        ...


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of one checkpoint, in natural order, and what was decided on the way to them.

    ``left_out`` holds ``(name, reason)`` for every weight file and index that lies there and is not read;
    ``unindexed`` are those of them that may hold weights of this model which the index does not know of;
    ``notices`` are the sentences a user should see. ``problems`` are files that belong here and cannot be used:
    it is empty unless the layout was resolved with ``keep_problems``. ``scheme`` is that of the paths that a reader
    takes, and ``place`` the settings of their store, in words. ``remote`` is set while the files have yet to be
    downloaded: ``brought()`` is the layout that a reader can take. ``listing`` shows what else lies there.
    """

    format: str
    root: str
    files: tuple[LayoutFile, ...]
    index: Index | None = None
    variant: str | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    unindexed: tuple[LayoutFile, ...] = ()
    notices: tuple[str, ...] = ()
    problems: tuple[CheckpointError, ...] = ()
    scheme: str = "file"
    place: Mapping[str, str] = field(default_factory=dict)
    listing: Listing | None = field(default=None, compare=False, repr=False)
    remote: Remote | None = None

    def brought(self, *, show_progress: bool = False) -> Layout:
        """The same layout with its files on this machine, or where a reader reads them. Raises CheckpointError."""
        return self if self.remote is None else self.remote.bring(self, show_progress=show_progress)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of ``files``, as readers take them."""
        return tuple(file.path for file in self.files)


LayoutOf = Callable[[str, Listing], Layout]
"""From the root of a place, as messages name it, and its listing to the layout that was asked for."""


def resolve_layout(
    located: Located,
    *,
    variant: str | None = None,
    use_format: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    keep_problems: bool = False,
) -> Layout:
    """The files of the checkpoint at ``located``.

    ``variant`` and ``use_format`` are kept or refused, never swapped for another; ``rank`` and ``world_size``
    matter only to checkpoints that were split per rank before they were saved. ``keep_problems`` returns what a
    set lacks in ``problems`` in place of raising it, so that the rest can be looked at.

    Raises CheckpointNotFoundError (no weights, or not of that format or variant), AmbiguousCheckpointError,
    BadIndexError, UnsafePathError, MissingShardError, UnreadableFileError, EmptyFileError, ForeignContentError;
    CheckpointProblems where several files are wrong; ValueError for arguments out of range.
    """
    asked = Asked(variant=variant, format=use_format, rank=rank, world_size=world_size)
    layout = _layout(located, asked)
    layout = layout if layout.listing else replace(layout, listing=located.listing)
    if not keep_problems:
        CheckpointProblems.raise_any(layout.problems, path=layout.index.path if layout.index else layout.root)
    return layout


def _layout(located: Located, asked: Asked) -> Layout:
    listing = located.listing
    if located.selector is not None:
        chosen = of_selector(listing, located.selector, asked)
        layout = _of_families(chosen.listing, chosen.seen, [chosen.family], asked)
        return replace(layout, listing=chosen.listing)
    if located.name is None:
        return _of_folder(listing, asked)
    index = parse_index_name(located.name, variant=asked.variant, form=asked.format)
    if index is None:
        return _of_file(listing, located.name, asked)
    asked.require(located.path, format=index.format, variant=index.variant)
    return _of_index(listing, survey(listing.names(), variant=asked.variant, form=asked.format), index)


def _of_file(listing: Listing, name: str, asked: Asked) -> Layout:
    """One file that was named: it is read, whatever lies beside it, and its content says what it is."""
    (file,) = usable_files(listing, [name], of=listing.root, expected="the file that was given")
    verdict = format_of(name, listing.read_bytes(name, HEAD_BYTES), asked=asked.format)
    form = require_format(verdict, path=file.path)
    parsed = parse_weight_name(name, variant=asked.variant, form=form)
    variant = parsed.variant if parsed else None
    asked.require(file.path, format=form, variant=variant)
    if form == "gguf" and (split := _split_of(listing, name, asked)) is not None:
        return split
    said = [verdict.note] if verdict.note else []
    if parsed is not None and parsed.kind != "single":
        part = (
            f"shard {parsed.number} of {parsed.total}" if parsed.kind == "shards" else f"a part of rank {parsed.rank}"
        )
        said.append(f"{name} is {part}, and only it is read; give the folder to read all of them")
    return Layout(format=form, root=listing.root, files=(file,), variant=variant, notices=tuple(said))


def _split_of(listing: Listing, name: str, asked: Asked) -> Layout | None:
    """The whole set that one part of a split GGUF file belongs to: by itself no part is a model.

    Its other parts lie beside it (``split`` of llama.cpp names them), and any of them stands for all. None where
    ``name`` is not that of a part.
    """
    seen = survey(listing.names(), variant=asked.variant, form=asked.format)
    families = [family for family in seen.families if family.kind == "shards" and name in family.names]
    return _of_families(listing, seen, families, asked) if families else None


def _of_folder(listing: Listing, asked: Asked) -> Layout:
    seen = survey(listing.names(), variant=asked.variant, form=asked.format)
    found = of_variant(listing, of_format(listing, seen, asked.format), asked.variant)
    best = of_best_tier(listing, found)
    if isinstance(best, IndexName):
        return _of_index(listing, seen, best)
    return _of_families(listing, seen, choose_families(listing, best), asked)


def _of_families(listing: Listing, seen: Survey, families: Sequence[Family], asked: Asked) -> Layout:
    first = families[0]
    found = [promised(listing, family, asked) for family in families]
    names = [name for whole, _ in found for name in whole]
    expected = "a file" if first.kind == "single" else "a file, by the numbering of the others"
    files, problems = sorted_out(listing, names, expected=expected)
    rest = left_out(seen, names, first, f"no part of {first.title}")
    said = notices(rest)
    if len(families) > 1:
        said = (f"no index says that these belong together, and all are read: {some(names, 5)}; give one alone", *said)
    if first.tier:
        said = (f"{first.title} is {first.standing}; no other {first.format} weights are here, so it is read", *said)
    return Layout(
        format=first.format,
        root=listing.root,
        files=files,
        variant=first.variant,
        left_out=tuple((out.name, out.reason) for out in rest),
        notices=said,
        problems=(*(flood for _, flood in found if flood is not None), *problems),
    )


def _of_index(listing: Listing, seen: Survey, item: IndexName) -> Layout:
    file_format(item.format)  # refused where plugins disagree about it
    index = read_index(listing, item.name)
    if foreign := [name for name in index.shards if format_by_name(name, asked=item.format) not in (None, item.format)]:
        raise BadIndexError(
            "the index names files of another format",
            path=index.path,
            expected=item.format,
            found=some(foreign),
            fix="Get the index that belongs to the files.",
        )
    files, problems = sorted_out(
        listing,
        index.shards,
        expected=f"a file, named by {index.name}",
        instead=lambda name: of_other_upload(name, seen),
    )
    rest = left_out(seen, [item.name, *index.shards], item, f"not named by the index {item.name}")
    return Layout(
        format=item.format,
        root=listing.root,
        files=files,
        index=index,
        variant=item.variant,
        left_out=tuple((out.name, out.reason) for out in rest),
        unindexed=readable_files(listing, [out.name for out in rest if out.could_belong]),
        notices=(*index.notices, *gaps(index), *notices(rest)),
        problems=problems,
    )
