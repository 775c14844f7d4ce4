# SPDX-License-Identifier: Apache-2.0
"""What one operation wants of a checkpoint: which tensors, which part of each, and what that asks of a reader."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weight_readers import Feature, TensorMeta, TensorSlice
from weight_readers_loader.environment import Span
from weight_readers_loader.wording import counted, size

KeyFilter = Callable[[str], bool]
_MOST_SPANS = 1024


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """``tensors`` are those to be read, and ``whole`` says that they are all that their files hold."""

    tensors: Mapping[str, TensorMeta]
    slices: Mapping[str, TensorSlice] = field(default_factory=dict)
    whole: bool = True

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, TensorMeta],
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorSlice] | None = None,
        *,
        restricted: bool = False,
    ) -> Wanted:
        """Ask ``key_filter`` once about each name; ``restricted`` files hold more than ``tensors``.

        Raises IndexError with the tensor and its file for a slice of a dimension that is not there.
        """
        kept = {name: meta for name, meta in tensors.items() if key_filter is None or key_filter(name)}
        parts = {name: part for name, part in (slices or {}).items() if name in kept}
        for name, part in parts.items():
            _must_fit(part, kept[name])
        return cls(tensors=kept, slices=parts, whole=key_filter is None and not restricted)

    @property
    def nbytes(self) -> int:
        return sum(self._sizes())

    def _sizes(self) -> Iterator[int]:
        if not self.slices:
            return (meta.nbytes for meta in self.tensors.values())
        return (_nbytes(meta, self.slices.get(name)) for name, meta in self.tensors.items())

    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes wanted by the files' own words for dtypes, most first."""
        sums: Counter[str] = Counter()
        for name, meta in self.tensors.items():
            sums[meta.source_dtype] += _nbytes(meta, self.slices.get(name))
        return dict(sums.most_common())

    def skipped(self, tensors: Mapping[str, TensorMeta]) -> list[tuple[str, str]]:
        """``(what, why)`` for those of ``tensors`` that are not wanted, or only in part."""
        found: list[tuple[str, str]] = []
        if others := [meta.nbytes for name, meta in tensors.items() if name not in self.tensors]:
            found.append((f"{counted(len(others), 'tensor')} ({size(sum(others))})", "not asked for"))
        metas = [(self.tensors[name], part) for name, part in self.slices.items()]
        if outside := sum(meta.nbytes - _nbytes(meta, part) for meta, part in metas):
            found.append((f"parts of {counted(len(metas), 'tensor')} ({size(outside)})", "outside of their slices"))
        return found

    def needs(self) -> dict[str, Any]:
        """The fields of a `Request` that follow from what is wanted."""
        features = set() if self.whole else {Feature.KEY_FILTER}
        return {
            "needs": frozenset(features | ({Feature.SLICES} if self.slices else set())),
            "dtypes": frozenset(meta.dtype for meta in self.tensors.values()),
            "bytes_wanted": self.nbytes,
            "largest_tensor": max(self._sizes(), default=0),
        }

    def spans(self) -> list[Span]:
        """The bytes that are wanted; of some of the tensors where there are very many."""
        metas = list(self.tensors.values())
        return [_span(meta, self.slices.get(meta.name)) for meta in metas[:: 1 + len(metas) // _MOST_SPANS]]

    def only(self, names: Collection[str]) -> Wanted:
        """The part of this that is in ``names``."""
        if len(names) >= len(self.tensors) and all(name in names for name in self.tensors):
            return self
        return replace(self._part(name for name in self.tensors if name in names), whole=False)

    def split(self, groups: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str], Wanted]]:
        """Each group of files with the part that lies in it; groups of which nothing is wanted are left out."""
        by_file: defaultdict[str, list[str]] = defaultdict(list)
        for name, meta in self.tensors.items():
            by_file[meta.file].append(name)
        for files in groups:
            names = [name for file in files for name in by_file.get(file, ())]
            if names:
                yield files, self._part(names)

    def in_file_order(self, files: Sequence[str]) -> list[str]:
        """The names as readers of order `FILE_OFFSET` take them."""
        place = {path: number for number, path in enumerate(files)}
        metas = self.tensors.values()
        return [m.name for m in sorted(metas, key=lambda m: (place[m.file], m.offset, m.nbytes))]

    def _part(self, names: Iterable[str]) -> Wanted:
        tensors = {name: self.tensors[name] for name in names}
        slices = {name: part for name, part in self.slices.items() if name in tensors}
        return Wanted(tensors=tensors, slices=slices, whole=self.whole)

    @property
    def key_filter(self) -> KeyFilter | None:
        return None if self.whole else self.tensors.__contains__


def _span(meta: TensorMeta, part: TensorSlice | None) -> Span:
    dim, start, stop = part.resolve(meta.shape) if part is not None else (0, 0, 0)
    if part is None or dim != 0 or not meta.shape[0]:
        return Span(meta.file, meta.offset, meta.offset + meta.nbytes)
    row = meta.nbytes // meta.shape[0]
    return Span(meta.file, meta.offset + row * start, meta.offset + row * stop)


def _must_fit(part: TensorSlice, meta: TensorMeta) -> None:
    try:
        part.resolve(meta.shape)
    except IndexError as error:
        raise IndexError(f"slices: {error}: {meta.file}, tensor {meta.name!r}") from None


def _nbytes(meta: TensorMeta, part: TensorSlice | None) -> int:
    if part is None:
        return meta.nbytes
    dim, start, stop = part.resolve(meta.shape)
    return meta.nbytes * (stop - start) // meta.shape[dim] if meta.shape[dim] else 0
