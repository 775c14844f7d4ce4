# SPDX-License-Identifier: Apache-2.0
"""Whether tensors that are read into share memory: which value it held at the end would be up to the threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import gt
from typing import NamedTuple

import torch

from weight_readers import TargetMismatchError

UNTOUCHED = "Nothing was written"


class Footprint(NamedTuple):
    """The bytes of a tensor: ``run`` of them from ``begin`` on, repeated by each ``(stride, count)``, the widest first.

    Each stride is at least as long as what it repeats.
    """

    begin: int
    dims: tuple[tuple[int, int], ...]
    run: int

    @property
    def end(self) -> int:
        return self.begin + self.run + sum(stride * (count - 1) for stride, count in self.dims)

    def part(self, number: int) -> Footprint:
        """One of what the widest stride repeats; of a number that is none, where it would be."""
        return Footprint(self.begin + number * self.dims[0][0], self.dims[1:], self.run)

    def parts(self, begin: int, end: int) -> Iterator[Footprint]:
        """Those that have to do with the bytes from ``begin`` to ``end``."""
        stride, count = self.dims[0]
        first = (begin - self.part(0).end) // stride + 1
        last = -((self.begin - end) // stride) - 1
        return map(self.part, range(max(0, first), min(count - 1, last) + 1))


def footprint(target: torch.Tensor) -> Footprint:
    """Of a tensor with elements, none of which share memory."""
    size = run = target.element_size()
    dims: list[tuple[int, int]] = []
    for stride, count in sorted(zip(target.stride(), target.shape, strict=True)):
        if count == 1:
            continue
        if not dims and stride * size == run:
            run *= count
        else:
            dims.append((stride * size, count))
    return Footprint(target.data_ptr(), tuple(reversed(dims)), run)


def meet(one: Footprint, other: Footprint) -> bool:
    """Whether some byte is in both."""
    if one.begin >= other.end or other.begin >= one.end:
        return False
    if not one.dims and not other.dims:
        return True
    if one.dims[:1] > other.dims[:1]:
        one, other = other, one
    (stride, count) = other.dims[0]
    if one.dims and one.dims[0][0] == stride:
        # Only how far apart two parts are counts: the first of one against those of the other, which go on both ways.
        before = one.dims[0][1] - 1
        other = Footprint(other.begin - before * stride, ((stride, count + before), *other.dims[1:]), other.run)
        one = one.part(0)
    return any(meet(part, one) for part in other.parts(one.begin, one.end))


def targets_apart(targets: Mapping[str, torch.Tensor], plain: Mapping[str, int]) -> None:
    """Raise TargetMismatchError for two targets that share memory; ``plain`` are addresses of contiguous ones."""
    others = {name: footprint(target) for name, target in targets.items() if name not in plain and target.numel()}
    begins = [*plain.values(), *(each.begin for each in others.values())]
    ends = [*(begin + targets[name].nbytes for name, begin in plain.items()), *(each.end for each in others.values())]
    if not _any_overlap(begins, ends):
        return
    for close in _clusters(sorted(zip(begins, ends, [*plain, *others], strict=True))):
        tensors = ((name, targets[name]) for name in close)
        _refuse_any_that_meet((name, tensor.device, footprint(tensor)) for name, tensor in tensors if tensor.numel())


def _any_overlap(begins: Iterable[int], ends: Iterable[int]) -> bool:
    """Whether one span begins before another ends: then, in order, some begin lies before the end of the one before.

    Each list is sorted by itself, so that there is no tuple for each span.
    """
    return any(map(gt, sorted(ends), islice(sorted(begins), 1, None)))


def _clusters(spans: Iterable[tuple[int, int, str]]) -> Iterator[list[str]]:
    """The names of spans, given in order, in groups that do not overlap one another."""
    close: list[str] = []
    reach = 0
    for begin, end, name in spans:
        if begin >= reach and close:
            yield close
            close = []
        close.append(name)
        reach = max(reach, end)
    if close:
        yield close


def _refuse_any_that_meet(close: Iterable[tuple[str, torch.device, Footprint]]) -> None:
    """``close`` are in order of where they begin."""
    reaching: list[tuple[str, torch.device, Footprint]] = []
    for name, device, each in close:
        reaching = [earlier for earlier in reaching if earlier[2].end > each.begin]
        for before, its_device, other in reaching:
            if device == its_device and meet(other, each):
                raise TargetMismatchError(
                    f"targets {before!r} and {name!r} share memory", fix=f"{UNTOUCHED}; give one of the two names"
                )
        reaching.append((name, device, each))
