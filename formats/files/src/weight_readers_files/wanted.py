# SPDX-License-Identifier: Apache-2.0
"""What is wanted of a file: one tensor or a part of one, and whole tensors as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter, lt
from typing import TYPE_CHECKING, NamedTuple, overload

from weight_readers.tensors import Kind, TensorMeta, TensorTable
from weight_readers_files.ranges import Range, nbytes_of

if TYPE_CHECKING:
    import torch


class Wanted(NamedTuple):
    """One tensor to hand out, or a part of one: ``dtype``, ``shape`` and ``strides`` are those of torch.

    ``ranges`` hold its bytes in file order, ``begin`` and ``end`` bound them. ``strides`` is None where the bytes
    lie in one piece.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    ranges: Sequence[Range]
    begin: int
    end: int
    nbytes: int

    @classmethod
    def part(
        cls,
        tensor: TensorMeta,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        ranges: Sequence[Range],
        strides: tuple[int, ...],
    ) -> Wanted:
        """A part of ``tensor``, in ``ranges``; ``strides`` are those of the whole. Without ranges it is empty."""
        begin, end = (ranges[0][0], sum(ranges[-1])) if ranges else (tensor.offset, tensor.offset)
        shaped = strides if len(ranges) > 1 else None
        return cls(tensor.name, dtype, shape, shaped, ranges, begin, end, nbytes_of(ranges))

    @property
    def is_aligned(self) -> bool:
        """Whether it begins at a multiple of its element size. Mappings begin at a page, so the file decides."""
        return self.begin % self.dtype.itemsize == 0


class WholeTensors(Sequence[Wanted]):
    """The tensors of ``table``, which is in order; a `Wanted` is made when it is asked for.

    ``dtypes`` maps ``source_dtype`` to that of torch.
    """

    def __init__(self, table: TensorTable, dtypes: Mapping[str, torch.dtype]) -> None:
        self._table = table
        self._dtypes = dtypes

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Wanted]:
        return map(self._made, self._table.names, self._table.kinds, self._table.offsets)

    @overload
    def __getitem__(self, row: int) -> Wanted: ...

    @overload
    def __getitem__(self, row: slice) -> list[Wanted]: ...

    def __getitem__(self, row: int | slice) -> Wanted | list[Wanted]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        return self._made(self._table.names[row], self._table.kinds[row], self._table.offsets[row])

    def _made(self, name: str, kind: Kind, begin: int) -> Wanted:
        nbytes = kind.nbytes
        dtype = self._dtypes[kind.source_dtype]
        return Wanted(name, dtype, kind.stored_shape, None, ((begin, nbytes),), begin, begin + nbytes, nbytes)


def by_offset(table: TensorTable) -> TensorTable:
    """In the order of their bytes: an empty tensor before the one that shares its offset, so the last one ends last."""
    begins = table.offsets
    if all(map(lt, begins, islice(begins, 1, None))):
        return table
    sizes = [kind.nbytes for kind in table.kinds]
    rows = sorted(range(len(table)), key=lambda row: (begins[row], sizes[row]))
    return table.only(table.names[row] for row in rows)


def bytes_of(wanted: Sequence[Wanted]) -> int:
    """How many bytes all of them are."""
    return wanted.nbytes if isinstance(wanted, WholeTensors) else sum(map(attrgetter("nbytes"), wanted))


def ranges_of(wanted: Sequence[Wanted]) -> int:
    """How many ranges all of them are."""
    return len(wanted) if isinstance(wanted, WholeTensors) else sum(len(each.ranges) for each in wanted)
