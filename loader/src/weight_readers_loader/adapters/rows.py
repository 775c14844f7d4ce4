# SPDX-License-Identifier: Apache-2.0
"""Adapters of fused projections: rows reordered, split and joined. Rows are whole in packed tensors too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from weight_readers import TensorMeta
from weight_readers_loader.adapters.made import (
    Adapter,
    Made,
    Tensors,
    is_packed,
    matches,
    passed,
    refused,
    texts,
    with_name,
)

ALL = ("*",)


class _OfRows(Adapter):
    """What the adapters here share: they work on the first dimension, on names with one part (between dots)."""

    supports_packed = True

    def __init__(self, part: str, only: Iterable[str]) -> None:
        if not isinstance(part, str) or not part:
            raise TypeError(f"{type(self).__name__} must be told a part of names, as 'qkv_proj', not {part!r}")
        self.part = part
        self.only = texts("only", only)

    def _takes(self, name: str, part: str) -> bool:
        return part in name.split(".") and matches(name, self.only)

    def check(self, tensors: Tensors) -> None:
        if tensors and not any(self._takes(name, self.part) for name in tensors):
            what = f"{type(self).__name__} is for {self.part!r}, and no name has that part"
            raise refused(what, next(iter(tensors.values())))


class GroupedQKV(_OfRows):
    """The rows of fused projections from group by group to ``[q, k, v]``.

    In a checkpoint that is grouped, each group has the queries that share a key, then that key, then its value. The
    projection has ``(heads + 2 * kv_heads) * head_dim`` rows; weights ``[rows, …]`` and biases ``[rows]`` are taken.

    part: the part of the names that are meant, as ``qkv_proj``. kv_heads: as many as ``heads`` if left out.
    only: patterns of names (``*``, ``?``) to which it is restricted.
    """

    def __init__(
        self, part: str, *, heads: int, head_dim: int, kv_heads: int | None = None, only: Iterable[str] = ALL
    ) -> None:
        super().__init__(part, only)
        groups = heads if kv_heads is None else kv_heads
        for name, value in {"heads": heads, "head_dim": head_dim, "kv_heads": groups}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if heads % groups:
            raise ValueError(f"heads must be a multiple of kv_heads, and {heads} is none of {groups}")
        self.heads, self.head_dim, self.groups = heads, head_dim, groups

    def plan(self, tensors: Tensors) -> Iterator[Made]:
        rows = (self.heads + 2 * self.groups) * self.head_dim
        for name, meta in tensors.items():
            if not self._takes(name, self.part):
                yield passed(meta)
                continue
            _check_rows(meta, rows)
            yield Made(meta=meta, sources=(name,), make=self._reordered)

    def _reordered(self, fused: torch.Tensor) -> torch.Tensor:
        queries = self.heads // self.groups * self.head_dim
        grouped = fused.reshape(self.groups, queries + 2 * self.head_dim, *fused.shape[1:])
        parts = torch.split(grouped, [queries, self.head_dim, self.head_dim], dim=1)
        return torch.cat([part.reshape(-1, *fused.shape[1:]) for part in parts])


class Split(_OfRows):
    """A fused projection into its parts, as views: ``a.qkv_proj.weight`` into ``a.q_proj.weight`` and the others.

    part: the part of the names that are meant, as ``qkv_proj``.
    into: the parts in the order of their rows, with the number of rows each (``{"q_proj": 8, "k_proj": 2}``), or
        as a list where all have as many.
    only: patterns of names to which it is restricted.
    """

    def __init__(self, part: str, into: Mapping[str, int] | Sequence[str], *, only: Iterable[str] = ALL) -> None:
        super().__init__(part, only)
        sizes = dict(into) if isinstance(into, Mapping) else dict.fromkeys(texts("into", into))
        if len(sizes) < 2 or (not isinstance(into, Mapping) and len(sizes) < len(into)):
            raise ValueError(f"Split needs the names of two parts or more, each once, not {into!r}")
        for name, rows in sizes.items():
            if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
                raise ValueError(f"the rows of {name!r} must be a whole number of at least 1, not {rows!r}")
        self.sizes: Mapping[str, int | None] = sizes

    def plan(self, tensors: Tensors) -> Iterator[Made]:
        for name, meta in tensors.items():
            if self._takes(name, self.part):
                yield from self._parts(meta)
            else:
                yield passed(meta)

    def _parts(self, meta: TensorMeta) -> Iterator[Made]:
        begin = 0
        for part, rows in self._rows(meta).items():
            new = _with_rows(with_name(meta, _replaced(meta.name, self.part, part)), rows)
            yield Made(meta=new, sources=(meta.name,), make=partial(_narrowed, begin=begin, rows=rows))
            begin += rows

    def _rows(self, meta: TensorMeta) -> dict[str, int]:
        given = [rows for rows in self.sizes.values() if rows is not None]
        if given:
            _check_rows(meta, sum(given))
            return {part: rows for part, rows in self.sizes.items() if rows is not None}
        have = _check_rows(meta, None)
        if have % len(self.sizes):
            raise refused(
                "the rows cannot be split evenly", meta, expected=f"a multiple of {len(self.sizes)}", found=have
            )
        return dict.fromkeys(self.sizes, have // len(self.sizes))


class Concat(_OfRows):
    """Projections joined row by row, in the order given: ``a.q_proj.weight`` and others into ``a.qkv_proj.weight``.

    parts: the parts of names that are joined, in the order of their rows. into: the part that the new name has.
    only: patterns of names to which it is restricted.

    Where one is there, all must be, of one dtype (or packed type) and of equal other dimensions; or AdapterError. They
    are held until the last has come.
    """

    def __init__(self, parts: Sequence[str], into: str, *, only: Iterable[str] = ALL) -> None:
        self.parts = texts("parts", parts)
        if len(set(self.parts)) < 2 or len(set(self.parts)) < len(self.parts):
            raise ValueError(f"Concat needs two parts or more, each once, not {parts!r}")
        super().__init__(self.parts[0], only)
        if not isinstance(into, str) or not into:
            raise TypeError(f"into must be a part of names, as 'qkv_proj', not {into!r}")
        self.into = into

    def plan(self, tensors: Tensors) -> Iterator[Made]:
        done: set[str] = set()
        for name, meta in tensors.items():
            part = next((part for part in self.parts if self._takes(name, part)), None)
            joined = name if part is None else _replaced(name, part, self.into)
            if part is None:
                yield passed(meta)
            elif joined not in done:
                done.add(joined)
                yield self._joined(joined, [self._found(tensors, meta, part, each) for each in self.parts])

    def _found(self, tensors: Tensors, meta: TensorMeta, part: str, other: str) -> TensorMeta:
        name = _replaced(meta.name, part, other)
        if name not in tensors:
            raise refused("a tensor that is joined with it is missing", meta, expected=name, found="no such tensor")
        return tensors[name]

    def _joined(self, name: str, metas: Sequence[TensorMeta]) -> Made:
        first = metas[0]
        for meta in metas:
            _check_rows(meta, None)
            if _kind(meta) != _kind(first):
                expected = "{} {} of {!r}".format(*_kind(first), first.name)
                raise refused("it cannot be joined", meta, expected=expected, found="{} {}".format(*_kind(meta)))
        new = _with_rows(with_name(first, name), sum(meta.shape[0] for meta in metas))
        sources = tuple(meta.name for meta in metas)
        return Made(meta=new, sources=sources, make=lambda *tensors: torch.cat(tensors))


def _check_rows(meta: TensorMeta, expected: int | None) -> int:
    """The rows of a tensor that has any, whole ones. Raises AdapterError where those are not ``expected``."""
    if not meta.shape or (is_packed(meta) and (len(meta.shape) < 2 or meta.shape[0] != meta.stored_shape[0])):
        fix = "Restrict the adapter: only=['*.weight', '*.bias']"
        raise refused("it has no rows to split or join", meta, found=f"shape {list(meta.shape)}", fix=fix)
    if expected is not None and meta.shape[0] != expected:
        raise refused("a fused projection has other rows", meta, expected=expected, found=meta.shape[0])
    return meta.shape[0]


def _kind(meta: TensorMeta) -> tuple[str, list[int]]:
    """What must be equal to be joined: dtype or packed type, and all dimensions but the first."""
    return meta.source_dtype if is_packed(meta) else meta.dtype, list(meta.shape[1:])


def _with_rows(meta: TensorMeta, rows: int) -> TensorMeta:
    nbytes = meta.nbytes // meta.shape[0] * rows if meta.shape[0] else 0
    return replace(meta, shape=(rows, *meta.shape[1:]), stored_shape=(rows, *meta.stored_shape[1:]), nbytes=nbytes)


def _narrowed(fused: torch.Tensor, *, begin: int, rows: int) -> torch.Tensor:
    return fused.narrow(0, begin, rows)


def _replaced(name: str, part: str, new: str) -> str:
    return ".".join(new if each == part else each for each in name.split("."))
