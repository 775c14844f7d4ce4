# SPDX-License-Identifier: Apache-2.0
"""``bench``: which of the installed readers is fastest for this checkpoint on this disk.

The readers take turns in every round, so that a busy minute hits all of them. Beside them runs the limit: parallel
``preadv`` of the same bytes, with nothing made of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from weight_readers import Selection, TensorMeta, available_reader_names, describe_reader, explain_selection
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.commands.bare_reads import bare_reads
from weight_readers_loader.config.names import check_reader_name
from weight_readers_loader.opening import open_checkpoint
from weight_readers_loader.process import PeakMemory, storage_bytes_read
from weight_readers_loader.streams import touched
from weight_readers_loader.wording import counted, size

LIMIT = "limit"
"""The name of the bare reads among the arms."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One load. ``anon_beyond`` is the highest anonymous memory over that at its begin, in bytes."""

    seconds: float
    storage_bytes: int | None
    anon_beyond: int | None


@dataclass(frozen=True, kw_only=True)
class Bench:
    """``samples`` has one for each round of each arm, ``skipped`` the reason for each reader that has none.

    ``picked`` is the reader that a load of this kind would take by itself, and ``fastest`` the one it should.
    """

    reference: str
    format: str
    files: int
    tensors: int
    nbytes: int
    rounds: int
    cold: bool
    into_existing: bool
    owned: bool
    picked: str | None
    samples: Mapping[str, Sequence[Sample]]
    skipped: Mapping[str, str] = field(default_factory=dict)
    scheme: str = "file"

    @property
    def fastest(self) -> str | None:
        readers = [name for name in self.samples if name != LIMIT]
        return min(readers, key=lambda name: median(_seconds(self.samples[name])), default=None)

    def times_fastest(self, name: str) -> tuple[float, float, float]:
        """Median, lowest and highest over the rounds of this arm's time over the fastest reader's in that round."""
        fastest = _seconds(self.samples[self.fastest or name])
        ratios = [mine / its for mine, its in zip(_seconds(self.samples[name]), fastest, strict=True)]
        return median(ratios), min(ratios), max(ratios)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "fastest": self.fastest,
            "times_fastest": {name: self.times_fastest(name) for name in self.samples},
        }

    def lines(self) -> list[str]:
        what = "into existing tensors" if self.into_existing else "one tensor after the other, every page touched"
        caches = "evicted before each load" if self.cold else "read once before"
        if self.scheme != "file":
            caches = f"from {self.scheme}:// each time"
        return [
            f"{self.reference}: {self.format}, {counted(self.tensors, 'tensor')} in {counted(self.files, 'file')}, "
            f"{size(self.nbytes)}",
            f"{what}{', owned' if self.owned else ''}; {caches}; {counted(self.rounds, 'interleaved round')}, median "
            "(lowest to highest)",
            *(self._line(name, max(map(len, self.samples))) for name in self.samples),
            *(f"skipped: {name}: {why}" for name, why in self.skipped.items()),
            *([f"core picks for this (tensors pass by and are not kept): {self.picked}"] if self.picked else []),
        ]

    def _line(self, name: str, width: int) -> str:
        seconds = _seconds(self.samples[name])
        ratio, low, high = self.times_fastest(name)
        parts = [
            f"{name:<{width}}  {median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})",
            f"{size(int(self.nbytes / median(seconds)))}/s",
            f"{ratio:.2f} x the fastest's time ({low:.2f} to {high:.2f})",
        ]
        for what, label in (("storage_bytes", "from storage"), ("anon_beyond", "anonymous")):
            known = [value for sample in self.samples[name] if (value := getattr(sample, what)) is not None]
            parts += [f"{size(int(median(known)))} {label}"] if known else []
        return ", ".join(parts)


def bench(
    reference: str,
    *,
    rounds: int = 5,
    readers: Sequence[str] = (),
    cold: bool = False,
    into_existing: bool = False,
    owned: bool = False,
    options: Mapping[str, Any] | None = None,
    layout_arguments: Mapping[str, Any] | None = None,
    on_file: Callable[[str], None] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Load ``reference`` ``rounds`` times through each reader that can, and through the limit.

    Objects of a store are read from it each time, and have no such limit.

    readers: only these; otherwise every installed one that reads the format.
    cold: drop the files from the page cache before each load. What the disk itself caches stays there.
    into_existing: fill tensors that exist (memory for the whole model), instead of dropping each tensor at once.
    owned: ask for tensors that do not depend on the files.
    options: of the readers; one that does not have them all is skipped.
    say: hears of each load when it is done.

    Raises UnknownReaderError, ValueError for ``rounds`` below 1, for ``cold`` objects of a store and where existing
    tensors do not fit into memory, and what `open_checkpoint` raises.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    for name in readers:
        check_reader_name(name)

    opened = partial(
        open_checkpoint, reference, reader_options=options or None, on_file=on_file, **(layout_arguments or {})
    )
    checkpoint = opened()
    scheme = _read_where_it_is(checkpoint, cold=cold)
    metas = list(checkpoint.tensors.values())
    kind: dict[str, Any] = {"schemes": frozenset({scheme}), "device": "cpu"}
    kind |= {"owned": owned, "into_targets": into_existing, "options": options or {}}
    skipped = {name: why for name in readers or available_reader_names() if (why := _unfit(name, checkpoint, kind))}
    names = [name for name in readers or available_reader_names() if name not in skipped]
    targets = _existing(metas) if into_existing else None
    loads: dict[str, Callable[[], None]] = {name: _load(opened, name, targets, owned=owned) for name in names}
    if hasattr(os, "preadv") and scheme == "file":
        loads[LIMIT] = lambda: bare_reads(metas, targets)
    samples = _rounds(loads, rounds, checkpoint.layout.paths if cold else None, say)
    return Bench(
        reference=reference,
        format=checkpoint.layout.format,
        files=len(checkpoint.layout.files),
        tensors=len(metas),
        nbytes=sum(meta.nbytes for meta in metas),
        rounds=rounds,
        cold=cold,
        into_existing=into_existing,
        owned=owned,
        picked=explain_selection(format=checkpoint.layout.format, **kind).chosen,
        samples=samples,
        skipped=skipped,
        scheme=scheme,
    )


def _read_where_it_is(checkpoint: Checkpoint, *, cold: bool) -> str:
    """The scheme that is read from. Raises ValueError where no reader reads there, or there is nothing to evict."""
    layout = checkpoint.layout
    if layout.scheme == "file":
        return layout.scheme
    if cold:
        raise ValueError("--cold drops files from the page cache of this machine, and objects of a store are not in it")
    if explain_selection(format=layout.format, schemes=frozenset({layout.scheme})).chosen is None:
        what = f"no reader reads {layout.format} from {layout.scheme}://: it is copied here first, and the copy is read"
        raise ValueError(f"{what}. Give bench a local file")
    return layout.scheme


def _unfit(name: str, checkpoint: Checkpoint, kind: Mapping[str, Any]) -> str | None:
    """Why this reader cannot be measured with this checkpoint; None where it can. Imports its backend."""
    form = checkpoint.layout.format
    if form not in describe_reader(name).formats:
        return f"does not read {form}"
    selection = explain_selection(requested=name, format=form, **kind)
    if selection.chosen != name:
        return _why_not(selection, name)
    open_checkpoint(checkpoint.layout.paths[0], reader=name, reader_options=kind["options"] or None)
    return None


def _why_not(selection: Selection, name: str) -> str:
    candidate = selection.candidate(name)
    return selection.reason if candidate is None else candidate.reason


def _load(
    opened: Callable[..., Checkpoint], name: str, targets: Mapping[str, torch.Tensor] | None, *, owned: bool
) -> Callable[[], None]:
    """A whole load through one reader, headers included."""

    def load() -> None:
        checkpoint = opened(reader=name)
        if targets is not None:
            checkpoint.load_into(targets)
        else:
            for _ in touched(checkpoint.iter_weights(owned=owned), lambda name: checkpoint.reference):
                pass

    return load


def _rounds(
    loads: Mapping[str, Callable[[], None]], rounds: int, evicted: Sequence[str] | None, say: Callable[[str], None]
) -> dict[str, list[Sample]]:
    names = list(loads)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    if evicted is None and names:
        loads[names[-1]]()
    for number in range(rounds):
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            _evict(evicted or ())
            sample = _measured(loads[name])
            samples[name].append(sample)
            say(f"round {number + 1} of {rounds}: {name} {sample.seconds:.3f} s")
    return samples


def _measured(load: Callable[[], None]) -> Sample:
    storage = storage_bytes_read()
    with PeakMemory() as memory:
        before = memory.anon
        begun = time.perf_counter()
        load()
        seconds = time.perf_counter() - begun
    after = storage_bytes_read()
    return Sample(
        seconds=seconds,
        storage_bytes=None if storage is None or after is None else after - storage,
        anon_beyond=None if before is None or memory.anon is None else memory.anon - before,
    )


def _evict(paths: Iterable[str]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _existing(metas: Sequence[TensorMeta]) -> dict[str, torch.Tensor]:
    """Tensors as a model has them before a load, every page in memory."""
    wanted, free = sum(meta.nbytes for meta in metas), _available_memory()
    if free is not None and wanted > free:
        raise ValueError(
            f"existing tensors take {size(wanted)}, and {size(free)} of memory are available. Leave out "
            "--into-existing: then no more than a few tensors exist at a time"
        )
    return {meta.name: _zeros(meta) for meta in metas}


def _zeros(meta: TensorMeta) -> torch.Tensor:
    raw = torch.empty(meta.nbytes, dtype=torch.uint8).fill_(0)
    return raw.view(getattr(torch, meta.dtype)).view(meta.stored_shape)


def _available_memory() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    except OSError:
        return None


def _seconds(samples: Sequence[Sample]) -> list[float]:
    return [sample.seconds for sample in samples]
