# SPDX-License-Identifier: Apache-2.0
"""What one operation wants of a checkpoint: which tensors, which part of each, and what that asks of a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from weight_readers import Feature, ReaderInfo, TensorMeta, TensorPart
from weight_readers.slices import bounds_in, part_bounds, stretch_count
from weight_readers.tensors import TensorTable
from weight_readers_loader.environment import Span
from weight_readers_loader.portions import narrowest, nbytes_of, plainest, span_of_rows
from weight_readers_loader.wording import counted, size

KeyFilter = Callable[[str], bool]
_MOST_SPANS = 1024


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """``tensors`` are those to be read, and ``whole`` says that they are all that their files hold."""

    tensors: TensorTable
    slices: Mapping[str, TensorPart] = field(default_factory=dict)
    whole: bool = True

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, TensorMeta],
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorPart] | None = None,
        *,
        restricted: bool = False,
    ) -> Wanted:
        """Ask ``key_filter`` once about each name; ``restricted`` files hold more than ``tensors``.

        Raises SliceError for a slice of a dimension that is not there and for two slices of one, also where the filter
        leaves the tensor out, as readers do.
        """
        table, slices = TensorTable.of(tensors), slices or {}
        for name, part in slices.items():
            bounds_in(table[name], part)
        kept = table if key_filter is None else table.where(key_filter)
        parts = {name: plainest(part) for name, part in slices.items() if name in kept and part != ()}
        return cls(tensors=kept, slices=parts, whole=key_filter is None and not restricted)

    @property
    def nbytes(self) -> int:
        return self.tensors.nbytes - sum(whole - part for whole, part in self._cut())

    @property
    def largest(self) -> int:
        """The most bytes that are wanted of one tensor."""
        whole = self.tensors.where(lambda name: name not in self.slices) if self.slices else self.tensors
        sizes = (kind.nbytes for kind, _ in whole.kind_counts)
        return max(chain(sizes, (part for _, part in self._cut())), default=0)

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Of each tensor that is wanted in part, its bytes and those that are wanted."""
        for name, part in self.slices.items():
            meta = self.tensors[name]
            yield meta.nbytes, nbytes_of(meta, part)

    @property
    def stretches(self) -> int:
        """In how many pieces the parts of sliced tensors lie in their files."""
        shapes = ((self.tensors.kind_of(name).shape, part) for name, part in self.slices.items())
        return sum(stretch_count(shape, part_bounds(part, shape)) for shape, part in shapes)

    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes wanted by the files' own words for dtypes, most first."""
        sums: Counter[str] = Counter()
        for kind, count in self.tensors.kind_counts:
            sums[kind.source_dtype] += kind.nbytes * count
        for name, (whole, part) in zip(self.slices, self._cut(), strict=True):
            sums[self.tensors.kind_of(name).source_dtype] -= whole - part
        return dict(sums.most_common())

    def skipped(self, tensors: Mapping[str, TensorMeta]) -> list[tuple[str, str]]:
        """``(what, why)`` for those of ``tensors`` that are not wanted, or only in part."""
        found: list[tuple[str, str]] = []
        if others := TensorTable.of(tensors).where(lambda name: name not in self.tensors):
            found.append((f"{counted(len(others), 'tensor')} ({size(others.nbytes)})", "not asked for"))
        if outside := sum(whole - part for whole, part in self._cut()):
            parts = counted(len(self.slices), "tensor")
            found.append((f"parts of {parts} ({size(outside)})", "outside of their slices"))
        return found

    def needs(self) -> dict[str, Any]:
        """The fields of a `Request` that follow from what is wanted."""
        features = set() if self.whole else {Feature.KEY_FILTER}
        return {
            "needs": frozenset(features | ({Feature.SLICES} if self.slices else set())),
            "dtypes": frozenset(kind.dtype for kind, _ in self.tensors.kind_counts),
            "bytes_wanted": self.nbytes,
            "largest_tensor": self.largest,
            "stretches": self.stretches,
        }

    def beyond(self, info: ReaderInfo) -> frozenset[str]:
        """The tensors of which a reader that declares this reads more than is wanted: it slices one dimension only."""
        if Feature.MULTI_SLICES in info.features:
            return frozenset()
        return frozenset(name for name, part in self.slices.items() if isinstance(part, tuple))

    def as_read_by(self, info: ReaderInfo) -> Wanted:
        """This, with one slice of each tensor where the reader takes no more: the one that leaves the least to cut."""
        beyond = self.beyond(info)
        single = {name: narrowest(self.slices[name], self.tensors.kind_of(name)) for name in beyond}
        return replace(self, slices={**self.slices, **single}) if beyond else self

    def spans(self) -> list[Span]:
        """The bytes that are wanted; of some of the tensors where there are very many."""
        table, step = self.tensors, 1 + len(self.tensors) // _MOST_SPANS
        some = zip(table.names[::step], table.kinds[::step], table.paths[::step], table.offsets[::step], strict=True)
        return [span_of_rows(kind, path, offset, self.slices.get(name)) for name, kind, path, offset in some]

    def only(self, names: Collection[str]) -> Wanted:
        """The part of this that is in ``names``."""
        if len(names) >= len(self.tensors) and all(name in names for name in self.tensors):
            return self
        return replace(self._part(self.tensors.where(names.__contains__)), whole=False)

    def split(self, groups: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str], Wanted]]:
        """Each group of files with the part that lies in it; groups of which nothing is wanted are left out."""
        by_file = self.tensors.by_file
        for files in groups:
            tables = [by_file[file] for file in files if file in by_file]
            if tables:
                yield files, self if len(tables) == len(by_file) else self._part(TensorTable.joined(tables))

    def in_file_order(self, files: Sequence[str]) -> list[str]:
        """The names as readers of order `FILE_OFFSET` take them."""
        place = {path: number for number, path in enumerate(files)}
        metas = self.tensors.values()
        return [m.name for m in sorted(metas, key=lambda m: (place[m.file], m.offset, m.nbytes))]

    def _part(self, tensors: TensorTable) -> Wanted:
        slices = {name: part for name, part in self.slices.items() if name in tensors}
        return Wanted(tensors=tensors, slices=slices, whole=self.whole)

    @property
    def key_filter(self) -> KeyFilter | None:
        return None if self.whole else self.tensors.__contains__
