# SPDX-License-Identifier: Apache-2.0
"""`open_checkpoint`: from a reference to tensors, a state dict, or a filled module."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import nn

from weight_readers import (
    Environment,
    MissingTensorError,
    Selection,
    TensorMeta,
    TensorSlice,
    WeightReader,
)
from weight_readers_loader.adapters import Adapted, Adapter
from weight_readers_loader.arguments import device_of, flags, function, instance, named_device, slices_by_name
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.config import LayeredConfig, LoadConfig
from weight_readers_loader.config.adapting import configured_adapters
from weight_readers_loader.config.arguments import configured
from weight_readers_loader.config.asked import asked
from weight_readers_loader.config.names import check_reader_options, warn_of_engine_keys
from weight_readers_loader.files import CheckpointFiles
from weight_readers_loader.lazy import LazyTensor
from weight_readers_loader.meter import Clock, Meter
from weight_readers_loader.placement import Placement
from weight_readers_loader.placing import Placing, merged
from weight_readers_loader.preflight import Preflight, preflight
from weight_readers_loader.progress import progress_bar
from weight_readers_loader.remote import headers_of
from weight_readers_loader.report import LoadReport
from weight_readers_loader.resolve import Layout, format_named_by, resolve, scheme_of
from weight_readers_loader.side_files import SideFiles
from weight_readers_loader.streams import Stream, Update, both, touched
from weight_readers_loader.verifier import Verifier
from weight_readers_loader.verifying import Verify, verifier_of
from weight_readers_loader.wanted import KeyFilter, Wanted
from weight_readers_loader.watch import Watch
from weight_readers_loader.wording import some


def open_checkpoint(
    reference: str | os.PathLike[str],
    *,
    reader: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    use_format: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    strict: bool | None = None,
    reader_options: Mapping[str, Any] | None = None,
    dequantize: str | None = None,
    engine: Mapping[str, Any] | None = None,
    enable_multithread_weight_load: bool | None = None,
    num_weight_load_threads: int | None = None,
    host_budget: int | str | None = None,
    config: LayeredConfig | LoadConfig | str | os.PathLike[str] | None = None,
    adapters: Sequence[Adapter] = (),
    environment: Environment | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    on_file: Callable[[str], None] | None = None,
    show_progress: bool = False,
) -> Checkpoint:
    """Resolve ``reference``, check all its headers, and return a `Checkpoint` ready to be read.

    reference: a folder, an index file, or a single weight file, here (``~`` is expanded), in an object store
        (``s3://bucket/folder``) that an installed reader lists, or on the Hugging Face Hub (``owner/name``,
        ``owner/name@revision``, ``owner/name:Q4_K_M``, ``hf://owner/name/path``): there what cannot be read is
        refused first, and then the chosen files are downloaded into the cache of huggingface_hub.
    reader: ask for a reader by name; otherwise core's policy picks one for each operation.
    subfolder: the component of a model that has several in folders of their own, as diffusers saves pipelines.
    variant: ``fp16`` of ``model.fp16.safetensors``. Asked for and not there is an error.
    use_format: ``safetensors``, ``gguf`` or ``pt``, never swapped for another.
    rank, world_size: which part of a checkpoint that was saved split per rank.
    strict: no fallback to another reader, and no tensor that the index does not name; by default what
        WEIGHT_READERS_STRICT says.
    reader_options: constructor options of the reader; only readers that have them are considered.
    dequantize: ``float32``, ``bfloat16`` or ``float16``: yield numbers of this dtype for what the files hold in
        quantized blocks; by default those are yielded packed, as they are stored.
    engine: what the engine was asked for (``quantization``, ``lora``, ``fsdp``, …): readers of weights that cannot
        be combined with it decline, where the reference names the format before any file is looked at. A key that
        looks like a misspelling of one that a reader knows is warned of.
    enable_multithread_weight_load, num_weight_load_threads: how many threads read, where the picked reader has
        threads; by default 4, or fewer where the process has fewer CPUs to itself. Other readers go on without.
        False reaches a sequential reader.
    host_budget: bytes (or ``"8GiB"``) of host memory that a load may take besides tensors that exist before it, at most
        what machine and cgroups have left; ``"auto"`` is that. A reader that stays within is picked and bounded, and
        BudgetInfeasibleError is raised before a tensor is read where none does. By default the limit is what is left
        with swap, beyond which the kernel ends processes; ``"off"`` lifts it.
    config: what is to count where these arguments are None: a `LoadConfig`, layers of them (`layered`), or a file. By
        default the environment, and the file that WEIGHT_READERS_CONFIG names.
    adapters: what lies between the tensors of the files and those that `Checkpoint.iter_weights`, ``state_dict`` and
        ``load_into`` give, one after the other; after them come those of ``config``. Filters and slices go by the names
        of the files.
    environment: facts about the machine for the policy; those that it leaves open are looked up for each load.
    cache_dir: where copies of stored files go whose format no reader reads in their store (GGUF in S3), by default
        ``weight-readers`` below the user's cache folder. Headers and what is asked for are copied, and kept there.
    on_file: called with a file's path when its first tensor is handed out.
    show_progress: bars of downloads, on a terminal.

    Raises `ConfigError` for an option that nobody has, is ill-typed or excludes another one, before any file is looked
    at; `CheckpointError` for whatever is wrong with the files (all problems at once, before any tensor is
    read), and core's selection errors where no reader fits.
    """
    _check_open(reader, strict, reader_options, environment, on_file)
    flags(show_progress=show_progress)
    instance("adapters", adapters, Sequence, "a list of adapters")
    instance("engine", engine, Mapping, "a mapping of what the engine was asked for", or_none=True)
    layers = configured(
        config,
        reader=reader,
        strict=strict,
        enable_multithread_weight_load=enable_multithread_weight_load,
        num_weight_load_threads=num_weight_load_threads,
        host_budget=host_budget,
        dequantize=dequantize,
        reader_options=reader_options,
        cache_dir=None if cache_dir is None else os.fspath(cache_dir),
    )
    check_reader_options(layers)
    warn_of_engine_keys(engine)
    wishes = asked(layers)
    choosing = partial(Chooser, **wishes, engine=engine, environment=environment)
    if engine and (form := use_format or format_named_by(reference)):
        choosing(format=form, scheme=scheme_of(reference)).require()
    clock = Clock()
    with clock.phase("resolve"):
        layout = resolve(
            reference,
            reader_options=wishes["options"],
            subfolder=subfolder,
            variant=variant,
            use_format=use_format,
            rank=rank,
            world_size=world_size,
        )
    chooser = choosing(format=layout.format, scheme=layout.scheme)
    layout = _brought(layout, chooser, show_progress)
    watch = Watch(layout.paths)
    with clock.phase("select"):
        first, selection = chooser.pick()
    with clock.phase("headers"):
        checked = preflight(layout, first, strict=selection.strict)
    files = CheckpointFiles(groups=checked.groups, watch=watch, on_file=on_file)
    return Checkpoint(
        os.fspath(reference),
        layout,
        checked,
        chooser,
        selection,
        files,
        clock,
        layers,
        adapters=[*adapters, *configured_adapters(layers)],
    )


def _brought(layout: Layout, chooser: Chooser, show_progress: bool) -> Layout:
    """The layout on this machine. What would be refused afterwards is refused before anything is downloaded."""
    if layout.remote is None:
        return layout
    chooser.require()
    if layout.unindexed and chooser.explain().strict:
        preflight(layout, headers_of(layout, chooser.pick()[0]), strict=True)
    return layout.brought(show_progress=show_progress)


def _check_open(reader: object, strict: object, options: object, environment: object, on_file: object) -> None:
    instance("reader", reader, str, "the name of a reader", or_none=True)
    instance("strict", strict, bool, "True, False", or_none=True)
    instance("reader_options", options, Mapping, "a mapping of option names to values", or_none=True)
    instance("environment", environment, Environment, "an Environment", or_none=True)
    function("on_file", on_file, "a file's path")


class Checkpoint:
    """One checkpoint, checked and ready. Nothing is read until a method asks for tensors.

    ``tensors`` maps each name in the files to its `TensorMeta`, and ``adapted`` each one after the adapters (the same
    where there are none); ``aliases`` are names recorded in the files' metadata for
    tensors that are stored under another name; ``notices`` say what a person should know. ``config`` is how it is
    loaded, with the source of each value. ``selection`` is that of the reader that checked the headers, and
    ``report`` the `LoadReport` of the latest `state_dict` or `load_into`, with a selection of its own.
    """

    def __init__(
        self,
        reference: str,
        layout: Layout,
        checked: Preflight,
        chooser: Chooser,
        selection: Selection,
        files: CheckpointFiles,
        opened: Clock,
        config: LayeredConfig | None = None,
        *,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        self.reference = reference
        self.layout = layout
        self.tensors: Mapping[str, TensorMeta] = checked.tensors
        self.aliases = checked.aliases
        self.metadata = {file.path: file.metadata for file in checked.files}
        self.notices = checked.notices
        self.selection = selection
        self.config = config or LayeredConfig()
        self.report: LoadReport | None = None
        self._adapters = tuple(adapters)
        self._adapted = Adapted(self._adapters, self.tensors, check=True)
        self.adapted: Mapping[str, TensorMeta] = self._adapted.tensors
        self._restricted = checked.restricted
        self._chooser = chooser
        self._files = files
        self._file_metas = checked.files
        self._opened = opened.seconds

    @property
    def has_adapters(self) -> bool:
        return bool(self._adapters)

    def iter_weights(
        self,
        *,
        device: str | torch.device | None = None,
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorSlice] | None = None,
        owned: bool = False,
    ) -> Stream:
        """Yield ``(name, tensor)`` in the reader's declared order, each valid after the next one is taken.

        device: by default that of ``config``, or else the host.
        key_filter: called once with each name in the files; what it declines is never read.
        slices: the part wanted of a tensor, by its name in the files, in elements of its logical shape; not of one that
            an adapter changes.
        owned: tensors that do not depend on the files, even if somebody writes to those later.

        Raises MissingTensorError for a slice of a name that is not there, FileChangedError where a file is no
        longer the one that was opened.
        """
        flags(owned=owned)
        device = device_of(self._device(device, "cpu"))
        wanted, adapted = self._wanted_and_adapted(key_filter, slices)
        return adapted.adapt(self._reading(wanted, device, owned=owned)[0])

    def iter_stored(
        self,
        *,
        device: str | torch.device | None = None,
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorSlice] | None = None,
        owned: bool = False,
    ) -> Stream:
        """As `iter_weights`, with the tensors as the files have them: without the adapters."""
        flags(owned=owned)
        device = device_of(self._device(device, "cpu"))
        return self._reading(self._wanted(key_filter, slices), device, owned=owned)[0]

    def _reading(self, wanted: Wanted, device: str, *, owned: bool) -> tuple[Stream, Selection]:
        reader, selection = self._chooser.pick(wanted, device=device, owned=owned)
        return self._files.read(reader, wanted, device), selection

    def state_dict(
        self,
        *,
        device: str | torch.device | None = None,
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorSlice] | None = None,
        owned: bool = False,
        resolve_aliases: bool = False,
        touch: bool = False,
        verify: Verify = False,
        show_progress: bool = False,
    ) -> dict[str, torch.Tensor]:
        """All wanted tensors by name; on the host and not ``owned`` they are views of the files where that is best.

        touch: read one byte of every page, so that a view's bytes are in memory and the report's time covers them.
        resolve_aliases: also give each of ``aliases`` its tensor, shared with the name it is stored under.
        verify: as `load_into` has it; every byte is touched then.
        """
        flags(owned=owned, resolve_aliases=resolve_aliases, touch=touch, show_progress=show_progress)
        device = device_of(self._device(device, "cpu"))
        self._check_aliases(resolve_aliases)
        wanted, adapted = self._wanted_and_adapted(key_filter, slices)
        on_host = device.split(":")[0] == "cpu"
        clock = Clock(self._opened)
        with clock.phase("select"):
            reader, selection = self._chooser.pick(wanted, device=device, owned=owned, kept_on_host=on_host)
        with Meter(clock) as meter, progress_bar(reader.info.name, wanted.nbytes, show=show_progress) as bar:
            verifier = self._verifier(verify, wanted, reader)
            stored = self._files.read(reader, wanted, device, both(meter.update, bar.update), verifier)
            weights = adapted.adapt(stored)
            with verifier or nullcontext(), closing(clock.waiting(touched(weights) if touch else weights)) as stream:
                tensors = dict(stream)
                if verifier is not None:
                    clock.run("read", verifier.finish)
        aliases = {n: s for n, s in self.aliases.items() if resolve_aliases and s in tensors}
        remarks = {"aliases": aliases, "cast": adapted.converted()}
        self.report = self._report(selection, meter, wanted, verifier, **remarks)
        return tensors | {name: tensors[source] for name, source in aliases.items()}

    def load_into(
        self,
        target: nn.Module | Mapping[str, torch.Tensor],
        *,
        strict: bool = True,
        cast: bool = False,
        device: str | torch.device | None = None,
        owned: bool = False,
        resolve_aliases: bool = False,
        verify: Verify = False,
        show_progress: bool = False,
    ) -> LoadReport:
        """Fill a module, or a mapping of tensors, after a two-way audit of names, shapes and dtypes.

        Existing tensors are written in place. Parameters and buffers on the meta device are replaced by tensors
        on ``device`` (the host by default): there by views of the files, unless ``owned``. Tied parameters stay
        tied, and parameters that are not tied never share memory.

        strict: missing and unexpected names are an error; otherwise they are in the report.
        cast: convert where a dtype differs; otherwise that is an error. Packed weights are never converted.
        resolve_aliases: fill a missing name from the tensor that the files' metadata records for it.
        verify: True, or the path of a manifest: hash the files from the bytes that arrive, beside the load, and raise
            DigestMismatchError before it is over where one does not have its digest; what is in place by then is not
            to be used. True takes the digests of the Hugging Face cache, and ValueError says where there is none.
            Files are hashed whole: of a local one the rest is read besides (``verify_bytes`` of the report), of one
            in a store it is refused. Files of which nothing is wanted are not looked at.

        Raises TargetMismatchError before anything is read or written, ValueError for a ``device`` that the target
        is not on, TiedWeightsError where two names of one parameter hold different values. Should reading fail
        later, the error's ``written`` names the targets that were written by then; a module on the meta device is
        untouched.
        """
        flags(strict=strict, cast=cast, owned=owned, resolve_aliases=resolve_aliases, show_progress=show_progress)
        self._check_aliases(resolve_aliases)
        device = self._device(device)
        device = None if device is None else named_device(device)
        placement = Placement(
            target,
            self.adapted,
            aliases={} if self._adapted else self.aliases,
            resolve_aliases=resolve_aliases,
            strict=strict,
            cast=cast,
        )
        return self._load(placement, device=device, owned=owned, verify=verify, show_progress=show_progress)

    def _load(
        self,
        placement: Placement,
        *,
        device: str | None,
        owned: bool,
        show_progress: bool,
        verify: Verify = False,
        tell: Update = lambda stats: None,
    ) -> LoadReport:
        where = device_of(placement.where(device))
        in_place = placement.all_in_place
        placement.check_tied(self._iter_adapted)
        adapted = self._adapted.only(placement.wanted)
        wanted = self._wanted(None, placement.slices(adapted)).only(adapted.needs)
        clock = Clock(self._opened)
        with clock.phase("select"):
            reader, selection = self._chooser.pick(
                wanted,
                device=where,
                owned=owned,
                kept_on_host=not in_place and where.split(":")[0] == "cpu",
                into_targets=in_place,
            )
        with Meter(clock) as meter, progress_bar(reader.info.name, wanted.nbytes, show=show_progress) as bar:
            verifier = self._verifier(verify, wanted, reader)
            Placing(
                files=self._files,
                placement=placement,
                adapted=adapted,
                reader=reader,
                wanted=wanted,
                where=where,
                update=both(both(meter.update, bar.update), tell),
                clock=clock,
                verifier=verifier,
            ).run()
        remarks = placement.remarks()
        remarks["cast"] = merged(adapted.converted(), remarks["cast"])
        self.report = self._report(selection, meter, wanted, verifier, **remarks)
        return self.report

    def _verifier(self, verify: Verify, wanted: Wanted, reader: WeightReader) -> Verifier | None:
        return verifier_of(verify, self.layout, self._file_metas, wanted, reader)

    def _device(self, given: str | torch.device | None, default: str | None = None) -> str | torch.device | None:
        configured: str | None = self.config.value("device")
        return given if given is not None else configured if configured is not None else default

    def get_tensor(self, name: str, *, device: str | torch.device | None = None, owned: bool = False) -> torch.Tensor:
        """One tensor as the files have it, by its name in them. Raises MissingTensorError for any other name."""
        instance("name", name, str, "a str")
        self._must_have([name])
        with closing(self.iter_stored(device=device, key_filter=name.__eq__, owned=owned)) as weights:
            return next(tensor for _, tensor in weights)

    def get_slice(self, name: str) -> LazyTensor:
        """One tensor of the files, read as it is indexed, as by torch: ``checkpoint.get_slice("w")[2:4, ::2]``."""
        instance("name", name, str, "a str")
        self._must_have([name])
        return LazyTensor(self, self.tensors[name])

    def side_files(self) -> SideFiles:
        """What lies beside the weights: config, tokenizer, templates. ``copy_to(folder)`` takes them."""
        return SideFiles(self.layout)

    def _must_have(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.tensors:
                files = self.layout.paths
                path = files[0] if len(files) == 1 else self.layout.root
                close = get_close_matches(name, self.tensors, n=1)
                fix = f"Did you mean {close[0]!r}?" if close else f"It has {some(list(self.tensors), 5)}"
                raise MissingTensorError("no such tensor", path=path, tensor=name, fix=fix)

    def _wanted_and_adapted(
        self, key_filter: KeyFilter | None, slices: Mapping[str, TensorSlice] | None
    ) -> tuple[Wanted, Adapted]:
        """What is read for those that the filter takes, and what becomes of that."""
        wanted = self._wanted(key_filter, slices)
        if not self._adapters:
            return wanted, Adapted((), wanted.tensors)
        adapted = Adapted(self._adapters, wanted.tensors)
        changed = adapted.needs - set(adapted.untouched().values())
        for name in wanted.slices:
            if name in changed:
                raise ValueError(f"slices: an adapter changes {name!r}, so that no part of it can be read alone")
        return wanted.only(adapted.needs), adapted

    def _iter_adapted(self, names: Collection[str]) -> Stream:
        adapted = self._adapted.only(names)
        return adapted.adapt(self.iter_stored(key_filter=adapted.needs.__contains__))

    def _check_aliases(self, resolve_aliases: bool) -> None:
        if resolve_aliases and self._adapters:
            raise ValueError("resolve_aliases=True and adapters exclude each other: aliases are names of the files")

    def _wanted(self, key_filter: KeyFilter | None, slices: Mapping[str, TensorSlice] | None = None) -> Wanted:
        function("key_filter", key_filter, "a name that says whether the tensor is wanted")
        slices_by_name(slices)
        self._must_have(slices or ())
        return Wanted.of(self.tensors, key_filter, slices, restricted=self._restricted)

    def _report(
        self, selection: Selection, meter: Meter, wanted: Wanted, verifier: Verifier | None, **remarks: Any
    ) -> LoadReport:
        return LoadReport(
            reference=self.reference,
            selection=selection,
            files=len(self.layout.files),
            notices=self.notices,
            dtypes=wanted.bytes_by_dtype(),
            verified_files=verifier.files if verifier else 0,
            verify_bytes=verifier.bytes_read if verifier else 0,
            skipped=(*self.layout.left_out, *wanted.skipped(self.tensors)),
            **meter.figures(),
            **remarks,
        )
