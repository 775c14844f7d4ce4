# SPDX-License-Identifier: Apache-2.0
"""The files of an open checkpoint, read group by group and watched meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from weight_readers import Order, PluginContractError, ReadsInto, ReadStats, WeightReader
from weight_readers_loader.contract import kept_contract
from weight_readers_loader.streams import Stream, Totals, Update, both, by_file, cut_to, delivered
from weight_readers_loader.turns import Turns
from weight_readers_loader.verifier import Verifier
from weight_readers_loader.wanted import Wanted
from weight_readers_loader.watch import Watch
from weight_readers_loader.wording import counted, size


@dataclass(frozen=True, kw_only=True)
class CheckpointFiles:
    """``groups`` are the files that may be read in one go; ``on_file`` hears of each before its first tensor is waited
    for, or handed out where the reader has no order."""

    groups: tuple[tuple[str, ...], ...]
    watch: Watch
    on_file: Callable[[str], None] | None = None

    def read(
        self,
        reader: WeightReader,
        wanted: Wanted,
        device: str,
        on_progress: Update | None = None,
        verifier: Verifier | None = None,
    ) -> Stream:
        """Yield what is wanted, in the reader's order, and let ``verifier`` have it too.

        Raises FileChangedError, and what `delivered` raises.
        """
        totals = Totals(on_progress, wanted.nbytes, _decided(reader, wanted))
        for files, part in wanted.split(self.groups):
            read = part.as_read_by(reader.info)
            weights = self._read(reader, files, read, device, totals)
            whole = verifier.stream(weights, part.tensors) if verifier else weights
            yield from whole if read is part else cut_to(whole, part, read)
            totals.next_group(ReadStats(tensors=len(part.tensors), bytes_read=read.nbytes))

    def read_into(
        self,
        reader: ReadsInto,
        name: str,
        wanted: Wanted,
        targets: Mapping[str, torch.Tensor],
        on_progress: Update | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """Let the reader fill ``targets``, by checkpoint name, for all that is wanted, and ``verifier`` have it too.

        Raises FileChangedError, and PluginContractError where the reader (``name``) did not fill them all.
        """
        totals = Totals(on_progress, wanted.nbytes)
        for files, part in wanted.split(self.groups):
            self._read_into(reader, name, files, part, targets, totals, verifier)

    def _read_into(
        self,
        reader: ReadsInto,
        name: str,
        files: Sequence[str],
        part: Wanted,
        targets: Mapping[str, torch.Tensor],
        totals: Totals,
        verifier: Verifier | None,
    ) -> None:
        paths = self._checked(part)
        arrived = verifier.following(part.in_file_order(files), targets) if verifier else _ignore
        # What is on its way to a device may not be there yet when it is told of.
        on_host = all(targets[n].device.type == "cpu" for n in part.tensors)
        order = reader.info.order if isinstance(reader, WeightReader) else Order.COMPLETION
        update = both(totals.update, arrived) if verifier and on_host and order is Order.FILE_OFFSET else totals.update
        turns = self._turns(files, part)
        turns.delivered(len(part.tensors) if order is Order.COMPLETION else 0)
        with kept_contract(name):
            stats = reader.read_into(
                files,
                {n: targets[n] for n in part.tensors},
                slices=part.slices or None,
                on_progress=both(update, turns.reached),
            )
        if stats.tensors != len(part.tensors):
            breach = f"filled {stats.tensors} of {len(part.tensors)} tensors"
            raise PluginContractError(f"reader {name!r} {breach}", name=name, code="broken")
        arrived(stats)
        self.watch.check_contents(paths)
        totals.next_group(stats)

    def _read(self, reader: WeightReader, files: Sequence[str], part: Wanted, device: str, totals: Totals) -> Stream:
        paths, name = self._checked(part), reader.info.name
        with kept_contract(name):
            weights = reader.iter_weights(
                files,
                device=device,
                key_filter=part.key_filter,
                slices=part.slices or None,
                on_progress=totals.update,
            )
            if not isinstance(weights, Iterable):
                breach = f"returned {type(weights).__name__} for an iterator"
                raise PluginContractError(f"reader {name!r} {breach}", name=name, code="broken")
        in_order = reader.info.order is not Order.COMPLETION
        stream = delivered(weights, part, name, device)
        # Checked once more: a reader opens its files one by one, and a shard may have been replaced meanwhile.
        stream = by_file(stream, part, self.watch.check if in_order else self._found)
        yield from self._turns(files, part).following(stream) if in_order else stream
        self.watch.check_contents(paths)

    def _checked(self, part: Wanted) -> list[str]:
        """The files that are wanted of, as they were when the checkpoint was opened."""
        paths = list(part.tensors.by_file)
        for path in paths:
            self.watch.check(path)
        return paths

    def _turns(self, files: Sequence[str], part: Wanted) -> Turns:
        held = part.tensors.by_file
        return Turns(self.on_file or _ignore_file, [(path, len(held[path])) for path in files if path in held])

    def _found(self, path: str) -> None:
        self.watch.check(path)
        if self.on_file is not None:
            self.on_file(path)


def _decided(reader: WeightReader, wanted: Wanted) -> tuple[str, ...]:
    """What is to be said where the reader cannot read what is wanted and no more."""
    beyond = len(wanted.beyond(reader.info))
    if not beyond:
        return ()
    more = size(wanted.as_read_by(reader.info).nbytes - wanted.nbytes)
    return (
        f"slices of {counted(beyond, 'tensor')} in several dimensions are read by one and cut in memory, {more} more "
        f"than is wanted: reader {reader.info.name!r} does not declare multi_slices",
    )


def _ignore(stats: ReadStats) -> None:
    pass


def _ignore_file(path: str) -> None:
    pass
