# SPDX-License-Identifier: Apache-2.0
"""How the tensors of one load get to their targets: straight from the reader, or through adapters and a copy."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from weight_readers import CheckpointError, Feature, ReadsInto, WeightReader
from weight_readers_loader.adapters import Adapted
from weight_readers_loader.files import CheckpointFiles
from weight_readers_loader.meter import Clock
from weight_readers_loader.placement import Placement
from weight_readers_loader.streams import Stream, Totals, Update
from weight_readers_loader.verifier import Verifier
from weight_readers_loader.wanted import Wanted


@dataclass(frozen=True, kw_only=True)
class Placing:
    """``wanted`` is what is read of the files, ``adapted`` what becomes of it; ``where`` the device it is read to."""

    files: CheckpointFiles
    placement: Placement
    adapted: Adapted
    reader: WeightReader
    wanted: Wanted
    where: str
    update: Update
    clock: Clock
    verifier: Verifier | None = None

    def run(self) -> None:
        """Straight into the target what the reader can and no adapter changes; the rest by way of a tensor of its own.

        What is on the meta device is replaced last, once ``verifier`` has found all digests right. A CheckpointError
        on the way says in ``written`` which targets were written, wholly or in part.
        """
        with self.verifier or nullcontext():
            self._run()

    def _run(self) -> None:
        totals = Totals(self.update, self.wanted.nbytes)
        direct = self._direct()
        if direct:
            read = partial(self.clock.run, "read", partial(self._read_into, direct, totals))
            self.placement.fill_by(read, direct)
            totals.next_group()
        rest = [name for name in self.adapted.tensors if name not in direct]
        if rest:
            self._through_tensors(rest, totals, list(direct))
        else:
            self._finish_direct(list(direct))
            self.placement.agreed()

    def _finish_direct(self, names: list[str]) -> None:
        try:
            self._finish()
        except CheckpointError as error:
            error.written = tuple(self.placement.targets_of(names))
            raise

    def _finish(self) -> None:
        if self.verifier is not None:
            self.clock.run("read", self.verifier.finish)

    def _verified(self, weights: Stream) -> Stream:
        """The same tensors; an end comes only where all digests are right."""
        yield from weights
        self._finish()

    def _direct(self) -> dict[str, torch.Tensor]:
        """Name after the adapters -> its target, of all that the reader itself is to fill."""
        if Feature.READ_INTO not in self.reader.info.features or not isinstance(self.reader, ReadsInto):
            return {}
        beyond = self.wanted.beyond(self.reader.info)
        if not self.adapted and not beyond:
            return self.placement.in_memory(self.adapted.tensors.keys()) or {}
        untouched = self.adapted.untouched()
        # What is read once for two names, or twice, is read in one go; and a reader may not be able to skip the rest.
        others = {
            s for name, sources in self.adapted.sources.items() if name not in untouched for s in sources
        } | beyond
        names = {name for name, source in untouched.items() if source not in others}
        if len(names) < len(self.adapted.tensors) and Feature.KEY_FILTER not in self.reader.info.features:
            return {}
        if len({untouched[name] for name in names}) < len(names):
            return {}
        return self.placement.in_memory(names) or {}

    def _read_into(self, direct: dict[str, torch.Tensor], totals: Totals) -> None:
        untouched, reader = self.adapted.untouched(), self.reader
        assert isinstance(reader, ReadsInto)  # noqa: S101 - `_direct` looked
        names = {untouched[name]: name for name in direct}
        targets = {source: direct[name] for source, name in names.items()}
        try:
            self.files.read_into(
                reader, reader.info.name, self.wanted.only(names), targets, totals.update, self.verifier
            )
        except CheckpointError as error:
            error.written = tuple(names[source] for source in error.written)
            raise

    def _through_tensors(self, names: list[str], totals: Totals, before: list[str]) -> None:
        part, slices = self.adapted.only(names), self.wanted.slices
        wanted = self.wanted.only(part.needs)
        weights = self.files.read(self.reader, wanted, self.where, totals.update, self.verifier)
        try:
            with closing(self.clock.waiting(part.adapt(weights))) as stream:
                self.placement.fill(self._verified(stream), {n for n, s in part.untouched().items() if s in slices})
        except CheckpointError as error:
            error.written = (*self.placement.targets_of(before), *error.written)
            raise


def merged(*counts: dict[str, int]) -> dict[str, int]:
    """Counts added up by what is counted."""
    total: dict[str, int] = {}
    for each in counts:
        for what, count in each.items():
            total[what] = total.get(what, 0) + count
    return total
