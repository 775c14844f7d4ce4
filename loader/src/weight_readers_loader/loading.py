# SPDX-License-Identifier: Apache-2.0
"""One load while it runs: the reader that was picked for it, what verifies and measures it, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from weight_readers import FileMeta, ReaderInfo, Selection
from weight_readers_loader.adapters import Adapted
from weight_readers_loader.arguments import device_of
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.contents import Contents
from weight_readers_loader.files import CheckpointFiles
from weight_readers_loader.meter import Clock, Meter
from weight_readers_loader.placement import Placement
from weight_readers_loader.placing import Placing, merged
from weight_readers_loader.progress import progress_bar
from weight_readers_loader.report import LoadReport
from weight_readers_loader.resolve import Layout
from weight_readers_loader.streams import Stream, Update, both, touched
from weight_readers_loader.verifier import Verifier
from weight_readers_loader.verifying import Verify, verifier_of
from weight_readers_loader.wanted import Wanted


@dataclass(frozen=True, kw_only=True)
class Source:
    """An open checkpoint, as loads need it. ``opened`` has the time that went by before the first of them.

    ``without_use`` says what was given and is nothing to the reader that is asked about.
    """

    reference: str
    layout: Layout
    contents: Contents
    headers: Sequence[FileMeta]
    notices: tuple[str, ...]
    files: CheckpointFiles
    chooser: Chooser
    opened: Clock
    without_use: Callable[[ReaderInfo], tuple[str, ...]]

    def stream(
        self, wanted: Wanted, device: str, *, owned: bool, verify: Verify = False, tell: Update | None = None
    ) -> tuple[Stream, Selection]:
        """What is wanted as the files have it; an end comes only where all digests are right."""
        reader, selection = self.chooser.pick(wanted, device=device, owned=owned)
        verifier = verifier_of(verify, self.layout, self.headers, wanted, reader)
        weights = self.files.read(reader, wanted, device, tell, verifier)
        return weights if verifier is None else _verified(weights, verifier), selection

    def adapted_stream(self, names: Any) -> Stream:
        """On the host, those that are called ``names`` after the adapters."""
        contents = self.contents
        adapted = contents.adapted.only(names)
        return adapted.adapt(self.stream(contents.wanted(adapted.needs.__contains__), "cpu", owned=False)[0])


def _verified(weights: Stream, verifier: Verifier) -> Stream:
    with verifier, closing(weights):
        yield from weights
        verifier.finish()


class Load:
    """One load of ``wanted``. Raises core's selection errors, and what `verifier_of` raises, before it reads.

    ``request`` are the fields of a `Request` that do not follow from what is wanted; ``tell`` hears of progress.
    """

    def __init__(
        self,
        source: Source,
        wanted: Wanted,
        *,
        verify: Verify,
        show_progress: bool,
        tell: Update = lambda stats: None,
        **request: Any,
    ) -> None:
        self._source, self._wanted, self._device = source, wanted, request["device"]
        self._show_progress, self._tell = show_progress, tell
        self._clock = Clock(source.opened.seconds)
        self._meter = Meter(self._clock)
        with self._clock.phase("select"):
            self._reader, self._selection = source.chooser.pick(wanted, **request)
        self._verifier = verifier_of(verify, source.layout, source.headers, wanted, self._reader)

    def collect(self, adapted: Adapted, *, touch: bool) -> dict[str, torch.Tensor]:
        """What ``adapted`` makes of all tensors, by name."""
        with self._measured() as update:
            stored = self._source.files.read(self._reader, self._wanted, self._device, update, self._verifier)
            # Before they are adapted: what is computed from them is in memory, and an error names tensor and file.
            whole = touched(stored, self._wanted.tensors.path_of) if touch else stored
            stream = self._clock.waiting(adapted.adapt(whole))
            with self._verifier or nullcontext(), closing(stream):
                tensors = dict(stream)
                if self._verifier is not None:
                    self._clock.run("read", self._verifier.finish)
        return tensors

    def fill(self, placement: Placement, adapted: Adapted) -> None:
        """The targets of ``placement``, with what ``adapted`` makes."""
        with self._measured() as update:
            Placing(
                files=self._source.files,
                placement=placement,
                adapted=adapted,
                reader=self._reader,
                wanted=self._wanted,
                where=self._device,
                update=update,
                clock=self._clock,
                verifier=self._verifier,
            ).run()

    @contextmanager
    def _measured(self) -> Iterator[Update]:
        name, total = self._reader.info.name, self._wanted.as_read_by(self._reader.info).nbytes
        with self._meter, progress_bar(name, total, show=self._show_progress) as bar:
            yield both(both(self._meter.update, bar.update), self._tell)

    def report(self, **remarks: Any) -> LoadReport:
        """What it did; ``remarks`` are the fields that are known elsewhere."""
        source, wanted, verifier = self._source, self._wanted, self._verifier
        return LoadReport(
            reference=source.reference,
            selection=self._selection,
            files=len(source.layout.files),
            notices=source.notices,
            unused=source.without_use(self._reader.info),
            dtypes=wanted.bytes_by_dtype(),
            verified_files=verifier.files if verifier else 0,
            verify_bytes=verifier.bytes_read if verifier else 0,
            skipped=(*source.layout.left_out, *wanted.skipped(source.contents.tensors)),
            **self._meter.figures(),
            **remarks,
        )


def load_placed(source: Source, placement: Placement, *, device: str | None, owned: bool, **how: Any) -> LoadReport:
    """Fill the targets of ``placement``; ``how`` are the other arguments of `Load`.

    Raises ValueError for a ``device`` that the target is not on, TiedWeightsError before anything is written, and
    what `Load` and `Placing` raise.
    """
    where, in_place = device_of(placement.where(device)), placement.all_in_place
    placement.check_tied(source.adapted_stream)
    wanted, adapted = source.contents.placed(placement)
    kept = not in_place and where.split(":")[0] == "cpu"
    # What is copied on from the reader's tensors is taken one by one; owned ones would count as kept there.
    into = in_place and (owned or placement.fills_directly)
    load = Load(source, wanted, device=where, owned=owned, kept_on_host=kept, into_targets=into, **how)
    load.fill(placement, adapted)
    remarks = placement.remarks()
    remarks["cast"] = merged(adapted.converted(), remarks["cast"])
    return load.report(**remarks)
