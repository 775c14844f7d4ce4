# SPDX-License-Identifier: Apache-2.0
"""Which rows and bytes of a packed tensor belong to which rank of a tensor-parallel group.

Pure functions of metadata: nothing is read or allocated. A packed tensor is ``uint8 [rows, row_bytes]``; its rows
can be split anywhere, its columns between blocks only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import NamedTuple, Protocol

import torch

from weight_readers import TargetMismatchError
from weight_readers_gguf.types import TYPES, GGMLType


class PackedTensor(Protocol):
    """What is asked of a tensor: a `GGUFTensor` has it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> int: ...

    @property
    def shape(self) -> Sequence[int]: ...


class Part(NamedTuple):
    """Rows ``row`` to ``row + rows``, bytes ``byte`` to ``byte + nbytes`` of each, then ``padding`` rows of zeros."""

    row: int
    rows: int
    byte: int
    nbytes: int
    padding: int = 0


def column(tensor: PackedTensor, *, rank: int, world: int, replicas: int = 1) -> Part:
    """The rows of one rank, where the output is split; ``replicas`` ranks in a row hold the same ones."""
    return merged(tensor, [tensor.shape[0]], rank=rank, world=world, replicas=[replicas])[0]


def row(tensor: PackedTensor, *, rank: int, world: int) -> Part:
    """The byte columns of one rank, where the input is split: whole blocks, or `TargetMismatchError`."""
    _check_rank(rank, world)
    kind = TYPES[tensor.type]
    rows, columns = tensor.shape
    check_blocks(f"tensor {tensor.name!r}", columns, world, [kind])
    nbytes = columns // world // kind.block * kind.nbytes
    return Part(0, rows, rank * nbytes, nbytes)


def merged(
    tensor: PackedTensor, sizes: Sequence[int], *, rank: int, world: int, replicas: Sequence[int] = ()
) -> tuple[Part, ...]:
    """The rows of one rank in each of the outputs that the tensor holds one after the other, ``sizes`` rows each."""
    _check_rank(rank, world)
    rows, columns = tensor.shape
    if sum(sizes) != rows:
        raise TargetMismatchError(
            f"tensor {tensor.name!r} has {rows} rows, the outputs in it have {sum(sizes)} ({list(sizes)})"
        )
    parts, start = [], 0
    for size, copies in zip(sizes, replicas or [1] * len(sizes), strict=True):
        here = _share(tensor.name, size, world, copies)
        parts.append(Part(start + rank // copies * here, here, 0, _row_bytes(tensor, columns)))
        start += size
    return tuple(parts)


def qkv(tensor: PackedTensor, *, heads: int, kv_heads: int, rank: int, world: int) -> tuple[Part, Part, Part]:
    """The rows of one rank in a fused ``[q_all, k_all, v_all]``; with fewer kv heads than ranks, ranks share one."""
    _check_rank(rank, world)
    head, odd = divmod(tensor.shape[0], heads + 2 * kv_heads)
    if odd:
        raise TargetMismatchError(
            f"tensor {tensor.name!r} has {tensor.shape[0]} rows, which {heads} heads and twice {kv_heads} kv heads"
            " do not divide"
        )
    _check_heads(tensor.name, heads, kv_heads, world)
    copies = max(1, world // kv_heads)
    sizes = [heads * head, kv_heads * head, kv_heads * head]
    q, k, v = merged(tensor, sizes, rank=rank, world=world, replicas=[1, copies, copies])
    return q, k, v


def vocab(tensor: PackedTensor, *, padded_rows: int, rank: int, world: int) -> Part:
    """The rows of one rank of an embedding whose vocabulary is padded to ``padded_rows``: zeros behind the last."""
    _check_rank(rank, world)
    rows, columns = tensor.shape
    if padded_rows < rows:
        raise TargetMismatchError(f"tensor {tensor.name!r} has {rows} rows, more than the padded {padded_rows}")
    here = _share(tensor.name, padded_rows, world, 1)
    start = min(rank * here, rows)
    kept = min(start + here, rows) - start
    return Part(start, kept, 0, _row_bytes(tensor, columns), here - kept)


def slice_packed(packed: torch.Tensor, parts: Part | Sequence[Part]) -> torch.Tensor:
    """The parts of ``uint8 [rows, row_bytes]``, one below the other: a view where it is one part without padding."""
    slices = [_cut(packed, part) for part in ([parts] if isinstance(parts, Part) else parts)]
    return slices[0] if len(slices) == 1 else torch.cat(slices)


def byte_ranges(parts: Part | Sequence[Part], *, row_bytes: int, offset: int = 0) -> Iterator[tuple[int, int]]:
    """``(offset, length)`` in the file of each part, of a tensor of that many bytes a row at ``offset``."""
    for part in [parts] if isinstance(parts, Part) else parts:
        begin = offset + part.row * row_bytes + part.byte
        if part.nbytes == row_bytes:
            yield begin, part.rows * row_bytes
        else:
            yield from ((begin + index * row_bytes, part.nbytes) for index in range(part.rows))


def check_blocks(what: str, columns: int, world: int, kinds: Sequence[GGMLType]) -> None:
    """Refuse ``world`` ranks where a block of any of ``kinds`` would be cut."""
    block = lcm(*(kind.block for kind in kinds))
    if columns % world == 0 and columns // world % block == 0:
        return
    largest = max(kinds, key=lambda kind: kind.block)
    raise TargetMismatchError(
        f"{what} cannot be split over {world} ranks along its input: {columns} columns make {columns / world:g}"
        f" a rank, no whole number of {largest.name} blocks of {largest.block}",
        fix=f"Use a tensor-parallel size of {_sizes(columns, block, world)}, or keep this layer whole on every rank",
    )


def _sizes(columns: int, block: int, world: int) -> str:
    blocks = columns // block
    valid = [size for size in range(1, blocks + 1) if blocks % size == 0] or [1]
    below = [size for size in valid if size < world][-1:]
    above = [size for size in valid if size > world][:1]
    return " or ".join(map(str, below + above)) or "1"


def _cut(packed: torch.Tensor, part: Part) -> torch.Tensor:
    cut = packed[part.row : part.row + part.rows, part.byte : part.byte + part.nbytes]
    return torch.cat([cut, cut.new_zeros(part.padding, part.nbytes)]) if part.padding else cut


def _row_bytes(tensor: PackedTensor, columns: int) -> int:
    kind = TYPES[tensor.type]
    return columns // kind.block * kind.nbytes


def _share(name: str, rows: int, world: int, replicas: int) -> int:
    share, odd = divmod(rows * replicas, world)
    if odd or world % replicas:
        copies = f", each held by {replicas}" if replicas > 1 else ""
        raise TargetMismatchError(
            f"tensor {name!r} cannot be split over {world} ranks along its output: {rows} rows{copies}"
        )
    return share


def _check_heads(name: str, heads: int, kv_heads: int, world: int) -> None:
    shared = kv_heads % world if kv_heads >= world else world % kv_heads
    if heads % world or shared:
        raise TargetMismatchError(
            f"tensor {name!r} cannot be split over {world} ranks by heads: it has {heads} heads and {kv_heads} kv heads"
        )


def _check_rank(rank: int, world: int) -> None:
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} ranks: it must be from 0 to one below their number")
