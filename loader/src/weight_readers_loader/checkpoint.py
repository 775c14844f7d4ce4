# SPDX-License-Identifier: Apache-2.0
"""`open_checkpoint`: from a reference to tensors, a state dict, or a filled module."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from typing import Any

import torch
from torch import nn

from weight_readers import (
    Environment,
    Feature,
    MissingTensorError,
    ReadStats,
    Selection,
    TensorMeta,
    TensorSlice,
    WeightReader,
)
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.lazy import LazyTensor
from weight_readers_loader.placement import Placement
from weight_readers_loader.preflight import Preflight, preflight
from weight_readers_loader.progress import ProgressBar, progress_bar
from weight_readers_loader.report import LoadReport, Meter
from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.references import locate, parse_reference
from weight_readers_loader.streams import Totals, announced, both, touched

KeyFilter = Callable[[str], bool]


def open_checkpoint(
    reference: str | os.PathLike[str],
    *,
    reader: str | None = None,
    variant: str | None = None,
    use_format: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    strict: bool | None = None,
    reader_options: Mapping[str, Any] | None = None,
    environment: Environment | None = None,
    on_file: Callable[[str], None] | None = None,
) -> Checkpoint:
    """Resolve ``reference``, check all its headers, and return a `Checkpoint` ready to be read.

    reference: a folder, an index file, or a single weight file; ``~`` is expanded.
    reader: ask for a reader by name; otherwise core's policy picks one for each operation.
    variant: ``fp16`` of ``model.fp16.safetensors``. Asked for and not there is an error.
    use_format: ``safetensors``, ``gguf`` or ``pt``, never swapped for another.
    rank, world_size: which part of a checkpoint that was saved split per rank.
    strict: no fallback to another reader, and no tensor that the index does not name.
    reader_options: constructor options of the reader; only readers that have them are considered.
    environment: facts about the machine for the policy.
    on_file: called with a file's path when its first tensor is handed out.

    Raises `CheckpointError` for whatever is wrong with the files (all problems at once, before any tensor is
    read), and core's selection errors where no reader fits.
    """
    layout = resolve_layout(
        locate(parse_reference(reference)), variant=variant, use_format=use_format, rank=rank, world_size=world_size
    )
    chooser = Chooser(
        format=layout.format, reader=reader, strict=strict, options=dict(reader_options or {}), environment=environment
    )
    checked = preflight(layout, chooser.pick(), strict=bool(strict))
    return Checkpoint(os.fspath(reference), layout, checked, chooser, on_file)


class Checkpoint:
    """One checkpoint, checked and ready. Nothing is read until a method asks for tensors.

    ``tensors`` maps each name to its `TensorMeta`; ``aliases`` are names recorded in the files' metadata for
    tensors that are stored under another name; ``notices`` say what a person should know. ``report`` is the
    `LoadReport` of the latest `state_dict` or `load_into`.
    """

    def __init__(
        self,
        reference: str,
        layout: Layout,
        checked: Preflight,
        chooser: Chooser,
        on_file: Callable[[str], None] | None = None,
    ) -> None:
        self.reference = reference
        self.layout = layout
        self.tensors: Mapping[str, TensorMeta] = checked.tensors
        self.aliases = checked.aliases
        self.metadata = {file.path: file.metadata for file in checked.files}
        self.notices = checked.notices
        self.report: LoadReport | None = None
        self._groups = checked.groups
        self._restricted = checked.restricted
        self._chooser = chooser
        self._on_file = on_file

    @property
    def selection(self) -> Selection | None:
        """The selection of the reader that checked the headers; each load has its own in its report."""
        return self._chooser.pick().selection

    def iter_weights(
        self,
        *,
        device: str = "cpu",
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorSlice] | None = None,
        owned: bool = False,
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yield ``(name, tensor)`` in the reader's declared order, each valid after the next one is taken.

        key_filter: called with each name; what it declines is never read.
        slices: the part wanted of a tensor, by name, in elements of its logical shape.
        owned: tensors that do not depend on the files, even if somebody writes to those later.
        """
        reader = self._reader(key_filter, slices, device=device, owned=owned, kept_on_host=False, into_targets=False)
        return self._read(reader, device, key_filter, slices, None)

    def state_dict(
        self,
        *,
        device: str = "cpu",
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorSlice] | None = None,
        owned: bool = False,
        resolve_aliases: bool = False,
        touch: bool = False,
        show_progress: bool = False,
    ) -> dict[str, torch.Tensor]:
        """All wanted tensors by name; on the host and not ``owned`` they are views of the files where that is best.

        touch: read one byte of every page, so that a view's bytes are in memory and the report's time covers them.
        resolve_aliases: also give each of ``aliases`` its tensor, shared with the name it is stored under.
        """
        host = device.split(":")[0] == "cpu"
        reader = self._reader(key_filter, slices, device=device, owned=owned, kept_on_host=host, into_targets=False)
        with Meter() as meter, self._bar(reader, key_filter, show=show_progress) as bar:
            weights = self._read(reader, device, key_filter, slices, both(meter.update, bar.update))
            tensors = dict(touched(weights) if touch else weights)
        aliases = {n: s for n, s in self.aliases.items() if resolve_aliases and s in tensors}
        self.report = self._report(reader, meter, aliases=aliases)
        return tensors | {name: tensors[source] for name, source in aliases.items()}

    def load_into(
        self,
        target: nn.Module | Mapping[str, torch.Tensor],
        *,
        strict: bool = True,
        cast: bool = False,
        device: str = "cpu",
        owned: bool = False,
        resolve_aliases: bool = False,
        show_progress: bool = False,
    ) -> LoadReport:
        """Fill a module, or a mapping of tensors, after a two-way audit of names, shapes and dtypes.

        Existing tensors are written in place. Parameters and buffers on the meta device are replaced by tensors
        on ``device``: on the host by views of the files, unless ``owned``. Tied parameters stay tied.

        strict: missing and unexpected names are an error; otherwise they are in the report.
        cast: convert where a dtype differs; otherwise that is an error.
        resolve_aliases: fill a missing name from the tensor that the files' metadata records for it.

        Raises TargetMismatchError before anything is read or written, TiedWeightsError where two names of one
        parameter hold different values. Should reading fail later, the error's ``written`` names the targets
        that were written by then; a module on the meta device is untouched.
        """
        placement = Placement(
            target,
            self.tensors,
            aliases=self.aliases if resolve_aliases else {},
            strict=strict,
            cast=cast,
        )
        placement.check_tied(lambda names: self.iter_weights(key_filter=names.__contains__))
        keep = placement.wants if placement.skips_some else None
        in_place = placement.all_in_place
        reader = self._reader(
            keep, None, device=device, owned=owned, kept_on_host=not in_place and device == "cpu", into_targets=in_place
        )
        with Meter() as meter, self._bar(reader, keep, show=show_progress) as bar:
            where = "cpu" if in_place else device
            with closing(self._read(reader, where, keep, None, both(meter.update, bar.update))) as weights:
                placement.fill(weights)
        self.report = self._report(reader, meter, **placement.remarks())
        return self.report

    def get_tensor(self, name: str, *, device: str = "cpu", owned: bool = False) -> torch.Tensor:
        """One tensor. Raises MissingTensorError for a name that is not there."""
        self._must_have([name])
        with closing(self.iter_weights(device=device, key_filter=name.__eq__, owned=owned)) as weights:
            return next(tensor for _, tensor in weights)

    def get_slice(self, name: str) -> LazyTensor:
        """One tensor that reads when it is indexed, as torch indexes: ``checkpoint.get_slice("w")[2:4, ::2]``."""
        self._must_have([name])
        return LazyTensor(self, self.tensors[name])

    def _must_have(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.tensors:
                raise MissingTensorError("no such tensor", path=self.layout.root, tensor=name)

    def _reader(
        self, key_filter: KeyFilter | None, slices: Mapping[str, TensorSlice] | None, **needs: Any
    ) -> WeightReader:
        self._must_have(slices or ())
        wanted = [meta for name, meta in self.tensors.items() if key_filter is None or key_filter(name)]
        features = {Feature.KEY_FILTER} if key_filter is not None or self._restricted else set()
        features |= {Feature.SLICES} if slices else set()
        return self._chooser.pick(
            needs=frozenset(features),
            dtypes=frozenset(meta.dtype for meta in wanted),
            bytes_wanted=sum(meta.nbytes for meta in wanted),
            **needs,
        )

    def _read(
        self,
        reader: WeightReader,
        device: str,
        key_filter: KeyFilter | None,
        slices: Mapping[str, TensorSlice] | None,
        on_progress: Callable[[ReadStats], None] | None,
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        totals = Totals(on_progress)
        for files in self._groups:
            weights = reader.iter_weights(
                files,
                device=device,
                key_filter=self._within(files, key_filter),
                slices={n: s for n, s in (slices or {}).items() if self.tensors[n].file in files} or None,
                on_progress=totals.update if on_progress else None,
            )
            yield from announced(weights, self.tensors, self._on_file) if self._on_file else weights
            totals.next_group()

    def _within(self, files: Iterable[str], key_filter: KeyFilter | None) -> KeyFilter | None:
        """The filter that keeps to this checkpoint's own tensors of these files; None where that is all of them."""
        if not self._restricted:
            return key_filter
        names = {name for name, meta in self.tensors.items() if meta.file in set(files)}
        return names.__contains__ if key_filter is None else lambda name: name in names and key_filter(name)

    def _bar(self, reader: WeightReader, key_filter: KeyFilter | None, *, show: bool) -> ProgressBar:
        total = sum(meta.nbytes for name, meta in self.tensors.items() if key_filter is None or key_filter(name))
        return progress_bar(f"{reader.info.name}", total, show=show)

    def _report(self, reader: WeightReader, meter: Meter, **remarks: Any) -> LoadReport:
        assert reader.selection is not None  # noqa: S101 - core sets it on every reader it makes
        return LoadReport(
            reference=self.reference,
            selection=reader.selection,
            files=len(self.layout.files),
            notices=self.notices,
            **meter.figures(),
            **remarks,
        )
