# SPDX-License-Identifier: Apache-2.0
"""Putting tensors of a checkpoint into a layer's buffer: this rank's part of each, where the layout says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods.compute import rows_of
from weight_readers_gguf.methods.parallel import Part, slice_packed
from weight_readers_gguf.methods.segments import Layout, Segment

Shard = str | int | None
_LETTERS = {"q": 0, "k": 1, "v": 2}


@dataclass(frozen=True)
class ShardLoader:
    """``loader(parameter, tensor, shard)``, as engines call the ``weight_loader`` of a parameter.

    ``tensor`` is a whole one of the checkpoint, or this rank's part of it: packed bytes ``uint8 [rows, row_bytes]``,
    or numbers for a shard that is not packed. ``shard`` names the outputs in it: ``"q"``, ``"k"``, ``"v"``, a
    position, a tensor name; None for all of the layer's. ``rank`` must be known where the layer is split.
    """

    layout: Layout
    rank: int | None = None

    def __call__(self, parameter: torch.Tensor, tensor: torch.Tensor, shard: Shard = None) -> None:
        if parameter.is_meta and isinstance(tensor, torch.Tensor) and not tensor.is_meta:
            # Torch copies nothing to it, and says nothing.
            raise ValueError(
                f"the packed weight of layer {self.layout.prefix!r} has no memory to load into: it is on the device"
                " 'meta'. Give it some (layer.to_empty(device=...)), or replace it by the bytes of the checkpoint"
            )
        segments = _chosen(self.layout, shard)
        packed = _as_bytes(tensor, segments, self.layout)
        parts = self._parts(packed, segments)
        with torch.no_grad():
            for segment, part in zip(segments, parts, strict=True):
                rows_of(parameter.data, segment.run).copy_(slice_packed(packed, part))

    def _parts(self, packed: torch.Tensor, segments: Sequence[Segment]) -> list[Part]:
        shape = tuple(packed.shape)
        width = segments[0].run.row_bytes
        if shape == (sum(_whole_rows(each) for each in segments), width * self.layout.input_world):
            return self._of_whole(segments)
        if shape == (sum(each.run.rows for each in segments), width):
            first = segments[0].run.row
            return [Part(each.run.row - first, each.run.rows, 0, width) for each in segments]
        raise _misfit(self.layout, segments, shape)

    def _of_whole(self, segments: Sequence[Segment]) -> list[Part]:
        rank = self._rank()
        column = rank if self.layout.world > 1 else 0
        width = segments[0].run.row_bytes
        byte = rank * width if self.layout.input_world > 1 else 0
        parts, start = [], 0
        for group, run in segments:
            row = min(column // group.replicas * run.rows, group.whole_rows)
            kept = min(row + run.rows, group.whole_rows) - row
            parts.append(Part(start + row, kept, byte, width, run.rows - kept))
            start += group.whole_rows
        return parts

    def _rank(self) -> int:
        world = max(self.layout.world, self.layout.input_world)
        if self.rank is None and world > 1:
            raise ValueError(
                f"layer {self.layout.prefix!r} is split over {world} ranks and nothing says which one this is."
                " Give the layer a tp_rank, or load_shard a rank"
            )
        if not 0 <= (self.rank or 0) < world:
            raise ValueError(f"layer {self.layout.prefix!r} is split over {world} ranks; there is no rank {self.rank}")
        return self.rank or 0


def _whole_rows(segment: Segment) -> int:
    return segment.group.whole_rows


def _chosen(layout: Layout, shard: Shard) -> Sequence[Segment]:
    """The segments of a shard, which are neighbours and of one type."""
    if shard is None:
        found: Sequence[Segment] = layout.segments
    elif isinstance(shard, int) or (shard in _LETTERS and len(layout.segments) == len(_LETTERS)):
        position = shard if isinstance(shard, int) else _LETTERS[shard]
        found = layout.segments[position : position + 1] if position >= 0 else ()
    else:
        found = [segment for segment in layout.segments if segment.group.tensor == shard]
    if not found or len({segment.run.type for segment in found}) > 1:
        raise TargetMismatchError(
            f"layer {layout.prefix!r} has no shard {shard!r} of one type",
            fix="Its shards: " + ", ".join(_described(layout.segments)),
        )
    return found


def _as_bytes(tensor: torch.Tensor, segments: Sequence[Segment], layout: Layout) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"layer {layout.prefix!r} is loaded from a tensor, not {type(tensor).__name__}")
    kind = segments[0].run.type
    wanted = kind.dtype or "uint8"
    found = str(tensor.dtype).removeprefix("torch.")
    if found != wanted or tensor.dim() != 2:
        raise TargetMismatchError(
            f"layer {layout.prefix!r} takes {kind.name} as {wanted} [rows, columns], not {found} {list(tensor.shape)}",
            dtypes=[(segments[0].group.tensor, found, wanted)],
        )
    return tensor if kind.dtype is None else tensor.contiguous().view(torch.uint8)


def _misfit(layout: Layout, segments: Sequence[Segment], shape: tuple[int, ...]) -> TargetMismatchError:
    width = segments[0].run.row_bytes
    whole = [sum(map(_whole_rows, segments)), width * layout.input_world]
    here = [sum(each.run.rows for each in segments), width]
    name = segments[0].group.tensor
    either = f"{whole}" if whole == here else f"{whole}, or {here} of this rank"
    return TargetMismatchError(
        f"bytes for {', '.join(_described(segments))} of layer {layout.prefix!r} have shape {list(shape)},"
        f" expected {either}",
        shapes=[(name, str(list(shape)), str(whole))],
    )


def _described(segments: Sequence[Segment]) -> list[str]:
    return [f"{index} ({group.tensor}, {run.type.name})" for index, (group, run) in enumerate(segments)]
