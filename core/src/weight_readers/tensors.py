# SPDX-License-Identifier: Apache-2.0
"""Tensors as the headers of their files describe them: one by one, and many of them as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from typing import Any, NamedTuple

from weight_readers._schema import Schema

UNKNOWN = "unknown"
"""The dtype of a tensor that a reader lists and cannot read."""


@dataclass(frozen=True, kw_only=True)
class TensorMeta(Schema):
    """One tensor as its file's header describes it.

    ``dtype`` is the torch dtype name of the yielded tensor (``bfloat16``, ``float4_e2m1fn_x2``, ``uint8`` for
    packed blocks) and ``source_dtype`` the format's own word (``BF16``, ``F4``, ``Q4_K``). ``shape`` is logical;
    ``stored_shape`` is that of the yielded tensor, which differs for sub-byte and packed types. ``offset`` and
    ``nbytes`` locate its bytes in ``file``.

    ``ggml_type`` is set where the tensor is yielded packed; ``parameter`` is then the name under which a module
    holds it (``blk.0.attn_q.qweight`` of ``blk.0.attn_q.weight``). ``converted`` says why the reader yields
    numbers for what the file holds in quantized blocks. A tensor that cannot be read at all is of dtype `UNKNOWN`,
    and ``converted`` says why not.
    """

    name: str
    dtype: str
    source_dtype: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int
    ggml_type: int | None = None
    parameter: str | None = None
    converted: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "stored_shape", tuple(self.stored_shape))

    @property
    def target(self) -> str:
        """The name of the parameter that this tensor fills."""
        return self.parameter or self.name


_set = object.__setattr__


class TensorKind(NamedTuple):
    """What all tensors of one dtype and shape have in common; the fields are those of `TensorMeta`."""

    dtype: str
    source_dtype: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    nbytes: int

    def tensor(self, name: str, file: str, offset: int) -> TensorMeta:
        """One tensor of this kind."""
        # The constructor of a frozen dataclass takes four times as long. What is not set has its default in the class.
        meta = object.__new__(TensorMeta)
        _set(meta, "name", name)
        _set(meta, "dtype", self.dtype)
        _set(meta, "source_dtype", self.source_dtype)
        _set(meta, "shape", self.shape)
        _set(meta, "stored_shape", self.stored_shape)
        _set(meta, "nbytes", self.nbytes)
        _set(meta, "file", file)
        _set(meta, "offset", offset)
        return meta


Kind = TensorKind | TensorMeta
"""What a table keeps of a tensor besides name, path and offset; of a tensor that was given whole, all of it."""


class TensorTable(Mapping[str, TensorMeta]):
    """Name -> `TensorMeta`, kept as columns: a `TensorMeta` is made when it is asked for, each time anew.

    ``names``, ``kinds``, ``paths`` and ``offsets`` have one entry for each tensor and are not to be written to. An
    object for each of 100 000 tensors takes a second to make, copy and compare, and the garbage collector, which looks
    at all objects of the process whenever there are many new ones, takes as long again.
    """

    _parts: Sequence[TensorTable] = ()
    """The tables that this one joins: what is known of them need not be found out of 100 000 rows again."""

    def __init__(self, tensors: Mapping[str, TensorMeta]) -> None:
        if isinstance(tensors, TensorTable):
            # Columns are not written to, so that what was found out about them is kept as well.
            vars(self).update(vars(tensors))
            return
        metas = list(tensors.values())
        self.names: Sequence[str] = list(tensors)
        self.kinds: Sequence[Kind] = metas
        self.paths: Sequence[str] = [meta.file for meta in metas]
        self.offsets: Sequence[int] = [meta.offset for meta in metas]

    @classmethod
    def of_columns(
        cls, names: Sequence[str], kinds: Sequence[Kind], paths: Sequence[str], offsets: Sequence[int]
    ) -> TensorTable:
        """The table of these columns, which it keeps; no name is in it twice."""
        table = TensorTable({})
        table.names, table.kinds, table.paths, table.offsets = names, kinds, paths, offsets
        return table

    @classmethod
    def of(cls, tensors: Mapping[str, TensorMeta]) -> TensorTable:
        """``tensors`` itself where it is a table, or one of it."""
        return tensors if isinstance(tensors, TensorTable) else TensorTable(tensors)

    @classmethod
    def joined(cls, tables: Iterable[TensorTable]) -> TensorTable:
        """One after the other; no name is in two of them."""
        parts = list(tables)
        if len(parts) == 1:
            return parts[0]
        table = cls.of_columns(
            list(chain.from_iterable(part.names for part in parts)),
            list(chain.from_iterable(part.kinds for part in parts)),
            list(chain.from_iterable(part.paths for part in parts)),
            list(chain.from_iterable(part.offsets for part in parts)),
        )
        table._parts = parts
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorTable.of_columns, (self.names, self.kinds, self.paths, self.offsets)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> TensorMeta:
        return self._meta(self._rows[name])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def values(self) -> ValuesView[TensorMeta]:
        return _Values(self)

    def items(self) -> ItemsView[str, TensorMeta]:
        return _Items(self)

    def metas(self) -> Iterator[TensorMeta]:
        """What `values` has, once."""
        for kind, name, path, offset in zip(self.kinds, self.names, self.paths, self.offsets, strict=True):
            yield kind if isinstance(kind, TensorMeta) else kind.tensor(name, path, offset)

    def path_of(self, name: str) -> str:
        """The file that tensor ``name`` is in. Raises KeyError."""
        return self.paths[self._rows[name]]

    def kind_of(self, name: str) -> Kind:
        """Dtype, shapes and size of tensor ``name``. Raises KeyError."""
        return self.kinds[self._rows[name]]

    def only(self, names: Iterable[str]) -> TensorTable:
        """The tensors of these names, in their order. Raises KeyError."""
        return self._part([self._rows[name] for name in names])

    def where(self, takes: Callable[[str], object]) -> TensorTable:
        """The tensors whose names ``takes`` takes, which is asked once about each."""
        rows = [row for row, name in enumerate(self.names) if takes(name)]
        return self if len(rows) == len(self) else self._part(rows)

    @cached_property
    def by_file(self) -> Mapping[str, TensorTable]:
        """The tensors in each file, by path."""
        runs: dict[str, list[TensorTable]] = {}
        for run in chain.from_iterable(part._runs() for part in self._parts or (self,)):
            runs.setdefault(run.paths[0], []).append(run)
        return {path: TensorTable.joined(tables) for path, tables in runs.items()}

    @cached_property
    def kind_counts(self) -> Sequence[tuple[Kind, int]]:
        """Each kind with the number of its tensors; equal kinds may be there several times."""
        if self._parts:
            return list(chain.from_iterable(part.kind_counts for part in self._parts))
        ids = list(map(id, self.kinds))
        kinds = dict(zip(ids, self.kinds, strict=True))
        return [(kinds[key], count) for key, count in Counter(ids).items()]

    @property
    def nbytes(self) -> int:
        """The bytes that all tensors take in their files."""
        return sum(kind.nbytes * count for kind, count in self.kind_counts)

    @property
    def has_twins(self) -> bool:
        """Whether a name is there twice after all, which is an error in the files."""
        return len(self._rows) < len(self)

    @cached_property
    def _rows(self) -> dict[Hashable, int]:
        return dict(zip(self.names, range(len(self.names)), strict=True))

    def _meta(self, row: int) -> TensorMeta:
        kind, name = self.kinds[row], self.names[row]
        return kind if isinstance(kind, TensorMeta) else kind.tensor(name, self.paths[row], self.offsets[row])

    def _part(self, rows: Sequence[int]) -> TensorTable:
        return TensorTable.of_columns(
            [self.names[row] for row in rows],
            [self.kinds[row] for row in rows],
            [self.paths[row] for row in rows],
            [self.offsets[row] for row in rows],
        )

    def _runs(self) -> Iterator[TensorTable]:
        """The tables of neighbours that are in one file."""
        if self.paths and self.paths.count(self.paths[0]) == len(self.paths):
            yield TensorTable(self)  # not itself, which would then hold itself
            return
        begin = 0
        for _, run in groupby(self.paths):
            end = begin + len(list(run))
            yield self._run(begin, end)
            begin = end

    def _run(self, begin: int, end: int) -> TensorTable:
        rows = slice(begin, end)
        return TensorTable.of_columns(self.names[rows], self.kinds[rows], self.paths[rows], self.offsets[rows])


class _Values(ValuesView[TensorMeta]):
    _mapping: TensorTable

    def __iter__(self) -> Iterator[TensorMeta]:
        return self._mapping.metas()


class _Items(ItemsView[str, TensorMeta]):
    _mapping: TensorTable

    def __iter__(self) -> Iterator[tuple[str, TensorMeta]]:
        return zip(self._mapping.names, self._mapping.metas(), strict=True)
