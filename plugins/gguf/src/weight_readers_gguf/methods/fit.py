# SPDX-License-Identifier: Apache-2.0
"""Whether the tensors of a file fit a layer as an engine declares it: decided before anything is allocated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from weight_readers.errors import TargetMismatchError, UnsupportedDtypeError
from weight_readers_gguf.methods.parallel import check_blocks
from weight_readers_gguf.methods.segments import Group, Layout, lay_out
from weight_readers_gguf.types import BY_NAME, TYPES, GGMLType

if TYPE_CHECKING:
    from weight_readers_gguf.tensors import GGUFTensor

PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Numbers that may lie beside packed shards in a fused layer: torch dtype -> type."""


class Source(NamedTuple):
    """A tensor under the name that the model has for it."""

    name: str
    tensor: GGUFTensor

    @property
    def type(self) -> GGMLType:
        """The type its bytes have when they arrive. Raises UnsupportedDtypeError for numbers no GEMM takes."""
        if self.tensor.is_packed:
            return TYPES[self.tensor.type]
        if self.tensor.stored_dtype in PLAIN:
            return BY_NAME[PLAIN[self.tensor.stored_dtype]]
        raise UnsupportedDtypeError(
            "a weight beside packed ones must be packed too, or F32, F16 or BF16",
            path=self.tensor.file,
            tensor=self.tensor.name,
            found=self.tensor.type_name,
        )


class Match(NamedTuple):
    """One output of a layer, and where it comes from; see `Declared`."""

    source: Source
    rows: int
    whole_rows: int
    replicas: int


@dataclass(frozen=True)
class Declared:
    """A layer as its engine declares it, in elements; sizes of this rank and of all ranks.

    ``replicas`` says for each output how many ranks hold the same rows of it (kv heads fewer than ranks).
    ``vocabulary`` is the number of rows that a padded embedding has in files.
    """

    prefix: str
    columns: int
    outputs: tuple[int, ...]
    whole_columns: int
    whole_rows: int
    replicas: tuple[int, ...] = ()
    vocabulary: int | None = None

    @property
    def world(self) -> int:
        """The number of ranks that the output is split over."""
        here = sum(self.outputs)
        return 1 if here == 0 else self.whole_rows // here

    @property
    def whole(self) -> tuple[int, ...]:
        """Rows of each output in files."""
        if self.vocabulary is not None:
            return (self.vocabulary,)
        copies = self.replicas or (1,) * len(self.outputs)
        return tuple(rows * self.world // each for rows, each in zip(self.outputs, copies, strict=True))

    def check(self) -> None:
        """Refuse sizes that no number of ranks explains."""
        _divides(self.prefix, "input", self.columns, self.whole_columns)
        _divides(self.prefix, "output", sum(self.outputs), self.whole_rows)


def fitted(declared: Declared, sources: Sequence[Source]) -> Layout:
    """The layout of the layer's weight. Raises `TargetMismatchError` where a shape or a partition does not fit."""
    declared.check()
    groups = [Group(source.name, source.type, *sizes) for source, *sizes in _matches(declared, sources)]
    ranks = declared.whole_columns // declared.columns if declared.columns else 1
    check_blocks(f"layer {declared.prefix!r}", declared.whole_columns, ranks, [group.type for group in groups])
    return lay_out(
        declared.prefix,
        groups,
        columns=declared.columns,
        whole_columns=declared.whole_columns,
        world=declared.world,
    )


def plain_fitted(declared: Declared, sources: Sequence[Source]) -> tuple[int, int]:
    """The logical shape of this rank's weight of plain numbers, after the same comparison of shapes."""
    declared.check()
    list(_matches(declared, sources))
    return sum(declared.outputs), declared.columns


def _matches(declared: Declared, sources: Sequence[Source]) -> Iterator[Match]:
    """The layer's outputs in its order; each tensor holds the next one, or several that add up to its rows."""
    copies = declared.replicas or (1,) * len(declared.outputs)
    waiting = deque(zip(declared.outputs, declared.whole, copies, strict=True))
    for source in sources:
        rows = _rows(declared, source, sources)
        while waiting and waiting[0][1] <= rows:
            sizes = waiting.popleft()
            yield Match(source, *sizes)
            rows -= sizes[1]
        if rows:
            raise _mismatch(declared, sources)
    if waiting:
        raise _mismatch(declared, sources)


def _rows(declared: Declared, source: Source, sources: Sequence[Source]) -> int:
    shape = source.tensor.shape
    if len(shape) != 2 or shape[1] != declared.whole_columns:
        raise _mismatch(declared, sources)
    return int(shape[0])


def _mismatch(declared: Declared, sources: Sequence[Source]) -> TargetMismatchError:
    found = ", ".join(f"{source.name} {list(source.tensor.shape)}" for source in sources)
    outputs = f" (outputs of {list(declared.whole)} rows)" if len(declared.whole) > 1 else ""
    target = [sum(declared.whole), declared.whole_columns]
    return TargetMismatchError(
        f"the file's weight does not fit layer {declared.prefix!r}: it has {found}; the layer wants {target}{outputs}",
        fix="Build the model from the configuration of this checkpoint",
        shapes=[(source.name, str(list(source.tensor.shape)), str(target)) for source in sources],
    )


def _divides(prefix: str, what: str, here: int, whole: int) -> None:
    if here < 0 or whole < here or (whole % here if here else whole):
        raise TargetMismatchError(
            f"layer {prefix!r} declares an {what} of {here} on this rank and {whole} over all:"
            " no number of ranks makes the one of the other"
        )
