# SPDX-License-Identifier: Apache-2.0
"""`open_checkpoint`: a reference resolved, a reader picked, all headers checked; no tensor is read yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from weight_readers import Environment
from weight_readers_loader.adapters import Adapter
from weight_readers_loader.arguments import flags, function, instance
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.config import LayeredConfig, LoadConfig
from weight_readers_loader.config.adapting import configured_adapters
from weight_readers_loader.config.arguments import configured
from weight_readers_loader.config.asked import asked, check_alone, without_use
from weight_readers_loader.config.names import check_reader_name, check_reader_options, warn_of_engine_keys
from weight_readers_loader.contents import Contents
from weight_readers_loader.files import CheckpointFiles
from weight_readers_loader.loading import Source
from weight_readers_loader.meter import Clock
from weight_readers_loader.preflight import preflight
from weight_readers_loader.remote import headers_of
from weight_readers_loader.resolve import Layout, format_named_by, resolve, scheme_of
from weight_readers_loader.watch import Watch


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
    use_format: ``safetensors``, ``gguf``, ``pt``, or a format that an installed reader declares; never swapped for
        another.
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
        threads; by default 4, or fewer where the process has fewer CPUs to itself. Other readers go on without, and
        ``unused`` of the report says so.
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
    on_file: called with a file's path when its turn comes: before its first tensor is waited for, or handed out where
        the reader declares no order. Readers that fill targets in no order have all files' turns at once.
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
    check_alone(layers)
    check_reader_name(layers.value("reader"))
    check_reader_options(layers, layers.value("reader"), scheme_of(reference))
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
    source = Source(
        reference=os.fspath(reference),
        layout=layout,
        contents=Contents(
            tensors=checked.tensors,
            aliases=checked.aliases,
            adapters=(*adapters, *configured_adapters(layers)),
            restricted=checked.restricted,
            path=layout.paths[0] if len(layout.paths) == 1 else layout.root,
        ),
        headers=checked.files,
        notices=checked.notices,
        files=CheckpointFiles(groups=checked.groups, watch=watch, on_file=on_file),
        chooser=chooser,
        opened=clock,
        without_use=partial(without_use, layers),
    )
    return Checkpoint(source, selection, layers)


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
