# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a layer's weight lie in its buffer: one type throughout, or one after the other without padding.

Shards of a fused layer often differ in type (``attn_v`` is Q6_K in a Q4_K_M file), hence in the bytes of a row.
Rows of one width form a matrix ``uint8 [rows, row_bytes]``; rows of several widths follow each other in one flat
buffer, in the layer's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from weight_readers_gguf.types import GGMLType


class Run(NamedTuple):
    """``rows`` rows of one type from ``row`` on, at byte ``offset`` of the buffer."""

    type: GGMLType
    row: int
    rows: int
    offset: int
    row_bytes: int

    @property
    def stop(self) -> int:
        """The row behind the last."""
        return self.row + self.rows

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def clip(self, begin: int, end: int) -> Run:
        """The part of the run in rows ``begin`` to ``end``; it must have one."""
        row, stop = max(begin, self.row), min(end, self.stop)
        return self._replace(row=row, rows=stop - row, offset=self.offset + (row - self.row) * self.row_bytes)


class Group(NamedTuple):
    """One logical output of a layer (q, k, v, gate, up), before it has a place.

    ``tensor`` is the model's name of the tensor it comes from, ``rows`` are those of this rank, ``whole_rows``
    those of all ranks together, ``replicas`` how many ranks hold the same ones.
    """

    tensor: str
    type: GGMLType
    rows: int
    whole_rows: int
    replicas: int = 1


class Segment(NamedTuple):
    """A group and the run of rows it takes."""

    group: Group
    run: Run


@dataclass(frozen=True)
class Layout:
    """The weight of one layer on one rank: logical shape ``[rows, columns]``, stored in ``segments``.

    ``whole_columns`` are those of all ranks, ``world`` is the number of ranks that the output is split over.
    """

    prefix: str
    columns: int
    whole_columns: int
    world: int
    segments: tuple[Segment, ...]
    runs: tuple[Run, ...]

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    @property
    def shape(self) -> tuple[int, int]:
        """Logical: ``(rows, columns)`` in elements."""
        return self.rows, self.columns

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    @property
    def type(self) -> GGMLType | None:
        """The type of every row; None where they differ."""
        return self.runs[0].type if len(self.runs) == 1 else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """``(rows, row_bytes)``, or ``(bytes,)`` of a flat buffer."""
        return (self.rows, self.runs[0].row_bytes) if len(self.runs) == 1 else (self.nbytes,)

    @property
    def input_world(self) -> int:
        """The number of ranks that the input is split over."""
        return self.whole_columns // self.columns if self.columns else 1

    def pieces(self, begin: int, end: int) -> Iterator[Run]:
        """What lies in rows ``begin`` to ``end``, in order."""
        for run in self.runs:
            if run.row < end and begin < run.stop:
                yield run.clip(begin, end)


def lay_out(prefix: str, groups: Sequence[Group], *, columns: int, whole_columns: int, world: int) -> Layout:
    """Give each group its rows, in the order given; ``columns`` must be whole blocks of every type."""
    segments: list[Segment] = []
    row = offset = 0
    for group in groups:
        run = Run(group.type, row, group.rows, offset, columns // group.type.block * group.type.nbytes)
        segments.append(Segment(group, run))
        row, offset = run.stop, offset + run.nbytes
    runs = tuple(_joined([segment.run for segment in segments]))
    return Layout(prefix, columns, whole_columns, world, tuple(segments), runs)


def _joined(runs: Sequence[Run]) -> Iterator[Run]:
    for _, group in groupby(runs, key=lambda run: run.type.id):
        first, *rest = group
        yield first._replace(rows=first.rows + sum(run.rows for run in rest))
