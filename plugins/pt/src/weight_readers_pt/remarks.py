# SPDX-License-Identifier: Apache-2.0
"""What a person should know of a file that is read all the same: one sentence each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from weight_readers_files import coalesce
from weight_readers_pt.contents import Contents
from weight_readers_pt.records import Dense
from weight_readers_pt.weights import Weights

_SHOWN = 5


def remarks(file: str, contents: Contents, weights: Weights, dense: Mapping[str, Dense]) -> tuple[str, ...]:
    """Where the weights were found, what lies beside them, what is shared, what is larger than it looks."""
    found = (*_found(weights), *_unaligned(contents, dense), *_shared(dense), *_oversize(contents, dense))
    return tuple(f"{file}: {text}" for text in found)


def _found(weights: Weights) -> Iterator[str]:
    if weights.under:
        yield f"the weights are those under {'.'.join(weights.under)!r}"
    if weights.others:
        entries = _counted(len(weights.others), "entry", "entries")
        yield f"{entries} beside the weights left out: {_some(weights.others)}"


def _unaligned(contents: Contents, dense: Mapping[str, Dense]) -> Iterator[str]:
    if contents.container.startswith("pickle"):
        begins = {name: contents.places[t.storage.key][0] + t.begin for name, t in dense.items() if t.span}
        copied = [name for name, begin in begins.items() if begin % dense[name].itemsize]
        counts = f"{len(copied)} of {len(dense)} tensors"
        yield f"of the format of torch before 1.6: {counts} unaligned, copied in place of mapped"


def _shared(dense: Mapping[str, Dense]) -> Iterator[str]:
    """Names of one and the same tensor (tied weights), and tensors that overlap otherwise."""
    names: defaultdict[Dense, list[str]] = defaultdict(list)
    for name, tensor in dense.items():
        if tensor.span:
            names[tensor._replace(storage=tensor.storage._replace(nbytes=0))].append(name)
    tied = [" = ".join(group) for group in names.values() if group[1:]]
    if tied:
        yield f"{_counted(len(tied), 'tensor')} of more than one name, stored once: {_some(tied)}"
    overlapping = list(_overlapping([(tensor, group[0]) for tensor, group in names.items()]))
    if overlapping:
        yield f"{_counted(len(overlapping), 'tensor')} over the bytes of another: {_some(overlapping)}"


def _overlapping(tensors: Sequence[tuple[Dense, str]]) -> Iterator[str]:
    reached: dict[str, int] = {}
    for tensor, name in sorted(tensors, key=lambda pair: (pair[0].storage.key, pair[0].begin)):
        key = tensor.storage.key
        if tensor.begin < reached.get(key, 0):
            yield name
        reached[key] = max(reached.get(key, 0), tensor.begin + tensor.span)


def _oversize(contents: Contents, dense: Mapping[str, Dense]) -> Iterator[str]:
    """Storages that hold more than their tensors: a view was saved, and the whole it is a view of with it."""
    used: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    names: dict[str, str] = {}
    for name, tensor in dense.items():
        used[tensor.storage.key].append((tensor.begin, tensor.span))
        names.setdefault(tensor.storage.key, name)
    needed = {key: sum(length for _, length in coalesce(ranges)) for key, ranges in used.items()}
    over = [key for key, count in needed.items() if count < contents.storages[key].nbytes]
    if over:
        unused = sum(contents.storages[key].nbytes - needed[key] for key in over)
        first = f"{names[over[0]]} needs {needed[over[0]]} of {contents.storages[over[0]].nbytes} bytes"
        yield (
            f"{unused} bytes of {_counted(len(over), 'storage')} belong to no tensor and are not read, as when a view "
            f"is saved with all that it is a view of: {first}"
        )


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
