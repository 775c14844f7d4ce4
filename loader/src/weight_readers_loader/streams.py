# SPDX-License-Identifier: Apache-2.0
"""What happens to a stream of tensors, and to its running totals, between the reader and the consumer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields

import torch

from weight_readers import MissingTensorError, PluginContractError, ReadStats, UnreadableFileError
from weight_readers.tensors import Kind
from weight_readers_loader.contract import kept_contract
from weight_readers_loader.portions import cut_further, shape_of
from weight_readers_loader.touching import Toucher
from weight_readers_loader.wanted import Wanted

Update = Callable[[ReadStats], None]
Weights = Iterable[tuple[str, torch.Tensor]]
Stream = Generator[tuple[str, torch.Tensor], None, None]


class Totals:
    """Running totals over several reads, one after the other; ``nbytes`` is what all of them want together.

    ``decisions`` are told of besides those of the reads.
    """

    def __init__(self, report: Update | None, nbytes: int, decisions: tuple[str, ...] = ()) -> None:
        self._report = report
        self._before = ReadStats(decisions=decisions)
        self._latest = ReadStats(bytes_wanted=nbytes)

    def update(self, stats: ReadStats) -> None:
        sums = {f.name: getattr(self._before, f.name) + getattr(stats, f.name) for f in fields(ReadStats)}
        once = tuple(dict.fromkeys(sums["decisions"]))
        self._latest = ReadStats(**{**sums, "bytes_wanted": self._latest.bytes_wanted, "decisions": once})
        if self._report is not None:
            self._report(self._latest)

    def next_group(self, delivered: ReadStats | None = None) -> None:
        """One read is over; ``delivered`` is what it gave, for a reader that did not tell itself."""
        if delivered is not None and self._latest.tensors < self._before.tensors + delivered.tensors:
            self.update(delivered)
        self._before = self._latest


@contextmanager
def ended(weights: Weights) -> Iterator[None]:
    """Close ``weights`` at the end of the block, however it ends: then its reader stops all work at once."""
    try:
        yield
    finally:
        close = getattr(weights, "close", None)
        if close is not None:
            close()


def delivered(weights: Weights, wanted: Wanted, reader: str, device: str) -> Stream:
    """Hold a reader to what it was asked for: every wanted tensor, once, as its header describes it.

    A reader whose worker failed in silence would otherwise leave a model half filled (NVIDIA/warp#1749).
    Raises MissingTensorError and PluginContractError.
    """
    due = set(wanted.tensors.names)
    with ended(weights):
        for name, tensor in _pairs(weights, reader):
            kind = wanted.tensors.kind_of(name) if name in due else None
            due.discard(name)
            if breach := _breach(name, tensor, kind, wanted, device):
                raise PluginContractError(f"reader {reader!r} {breach}", name=reader, code="broken")
            yield name, tensor
    if due:
        first = next(meta for name, meta in wanted.tensors.items() if name in due)
        raise MissingTensorError(
            f"reader {reader!r} ended early",
            path=first.file,
            tensor=first.name,
            expected=f"{len(wanted.tensors)} tensors",
            found=f"{len(wanted.tensors) - len(due)}",
            fix="Load with another reader, and report this to the one that is at fault",
        )


def _pairs(weights: Weights, reader: str) -> Stream:
    """What the reader yields, taken apart. Raises PluginContractError for what is no pair of a name and a tensor."""
    with kept_contract(reader):
        for pair in weights:
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
                breach = f"yielded {type(pair).__name__}, not a name and a tensor"
                raise PluginContractError(f"reader {reader!r} {breach}", name=reader, code="broken")
            yield pair


def _breach(name: str, tensor: torch.Tensor, meta: Kind | None, wanted: Wanted, device: str) -> str | None:
    if meta is None:
        return f"yielded {name!r}, which {'it had yielded before' if name in wanted.tensors else 'nobody asked for'}"
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.requires_grad:
        return f"yielded {name!r} as {type(tensor).__name__}, which is not a plain dense tensor"
    if tensor.device.type != device.split(":")[0]:
        return f"yielded {name!r} on {tensor.device}, and it was asked for on {device}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != meta.dtype:
        return f"yielded {name!r} as {dtype}, and the file says {meta.dtype}"
    if tuple(tensor.shape) != (shape := shape_of(meta, wanted.slices.get(name))):
        return f"yielded {name!r} of shape {list(tensor.shape)}, and {list(shape)} was asked for"
    return None


def cut_to(weights: Weights, wanted: Wanted, read: Wanted) -> Stream:
    """What is ``wanted`` of what was ``read``, which may have been more: see `Wanted.as_read_by`."""
    with ended(weights):
        for name, tensor in weights:
            part = wanted.slices.get(name)
            if part is not None and part != (had := read.slices[name]):
                tensor = cut_further(tensor, wanted.tensors.kind_of(name), part, had)
            yield name, tensor


def by_file(weights: Weights, wanted: Wanted, on_file: Callable[[str], None]) -> Stream:
    """Say each file's path before the first of its tensors is handed out."""
    current = None
    with ended(weights):
        for name, tensor in weights:
            path = wanted.tensors.path_of(name)
            if path != current:
                current = path
                on_file(path)
            yield name, tensor


def touched(weights: Weights, path_of: Callable[[str], str]) -> Stream:
    """Have every page of each contiguous tensor in memory before it is handed on.

    Raises UnreadableFileError where that cannot be: the file was cut, or its storage failed. ``path_of`` is asked for
    the file of that tensor.
    """
    with ended(weights), Toucher() as toucher:
        for name, tensor in weights:
            try:
                toucher.touch(tensor)
            except OSError as error:
                raise UnreadableFileError(
                    "the file shrank while it was mapped, or its storage failed",
                    path=path_of(name),
                    tensor=name,
                    found=error.strerror,
                    fix="Load again once its writer has finished; replace files by rename, never in place",
                ) from error
            yield name, tensor


def both(one: Update, other: Update) -> Update:
    def update(stats: ReadStats) -> None:
        one(stats)
        other(stats)

    return update
