# SPDX-License-Identifier: Apache-2.0
"""Readers that keep every rule of the testkit but one. Each is a reader of ours with one thing spoilt."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from weight_readers import (
    CheckpointError,
    CheckpointMeta,
    CheckpointProblems,
    DuplicateTensorError,
    ReaderInfo,
    ReadStats,
    TargetMismatchError,
)
from weight_readers_gguf.reader import GGUFReader
from weight_readers_mmap.reader import MappedReader
from weight_readers_threaded.reader import ThreadedReader

Pairs = Iterator[tuple[str, torch.Tensor]]
READERS: dict[str, tuple[str, type]] = {}
"""Rule -> the base that declares for it, and the reader."""

MIB = 1 << 20
OPTIONS: dict[str, dict[str, Any]] = {"owned": {"copy": True}, "into": {"max_in_flight_bytes": MIB, "num_threads": 2}}
"""What a base is made with; the readers of the others take no options, or need none."""


def breaks(rule: str, base: str = "mapped") -> Callable[[type], type]:
    """The class is the reader that breaks this rule; ``base`` as in `broken_hooks`."""

    def note(reader: type) -> type:
        READERS[f"test_{rule}"] = base, reader
        return reader

    return note


def make(rule: str, info: ReaderInfo) -> Any:
    base, kind = READERS[rule]
    reader = kind(**OPTIONS.get(base, {}))
    changed = rule == "test_made_without_options_it_is_what_it_declared"
    reader.info = replace(info, summary="something else") if changed else info
    return reader


class Sound(MappedReader):
    """Nothing is spoilt but the declaration, or the registration."""


for _rule in (
    "one_distribution_registers_the_reader",
    "importing_its_hook_module_adds_no_package_but_its_own",
    "describing_it_imports_no_backend",
    "the_declaration_goes_through_json_and_pickle",
    "made_without_options_it_is_what_it_declared",
    "views_of_the_file_are_declared_as_lifetime_and_as_feature_or_not_at_all",
    "every_declared_option_is_checked_and_named_in_the_error",
    "every_declared_feature_is_one_that_can_be_held_against_it",
    "the_protocols_are_those_of_the_declared_features",
    "the_declared_dtypes_are_those_of_its_files",
    "what_a_write_does_is_declared",
):
    breaks(_rule)(Sound)
breaks("direct_reads_leave_the_page_cache_alone", "owned")(Sound)


@breaks("its_hooks_are_sound_and_make_a_reader")
class _CannotBeMade(Sound):
    def __init__(self) -> None:
        raise OSError("libacme.so: cannot open shared object file")


# --- values ------------------------------------------------------------------------------------------------------


class Changed(MappedReader):
    """Yields what `pairs` makes of what a sound reader yields."""

    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        return self.pairs(super().iter_weights(files, **arguments), files, **arguments)

    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        for name, values in sound:
            yield from self.pair(name, values)

    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name, values

    def count(self, files: Any) -> int:
        return len(super().read_meta(files))


@breaks("every_dtype_comes_out_bit_for_bit")
class _Widens(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name, values.float() if values.dtype is torch.bfloat16 else values


@breaks("scalars_keep_their_shape")
class _NoScalars(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name, values.reshape(1) if values.ndim == 0 else values


@breaks("tensors_without_elements_stand_anywhere")
class _NoEmpty(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        for name, values in sound:
            if values.numel() or "slices" in arguments:
                yield name, values


@breaks("a_file_without_tensors_yields_nothing")
class _NeedsTensors(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if not self.count(files):
            raise CheckpointError("no tensors", path=str(files[0]))
        yield from sound


@breaks("names_are_any_text_that_the_format_holds")
class _TidiesNames(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name.replace("\t", " "), values


@breaks("thousands_of_tensors_come_whole")
class _Forgets(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from islice(sound, 400)


@breaks("a_large_tensor_has_every_byte")
class _FirstChunkOnly(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        if values.nbytes > 8 * MIB:
            values[8 * MIB // values.itemsize :].zero_()
        yield name, values


@breaks("blocks_come_packed_as_they_are_stored", "packed")
class _TurnsBlocks(GGUFReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        for name, values in super().iter_weights(files, **arguments):
            yield name, values.flip(0) if name.endswith(".weight") and values.dtype is torch.uint8 else values


@breaks("the_order_is_the_declared_one")
class _Sorts(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from sorted(sound) if self.count(files) == 5 and len(files) == 1 else sound


@breaks("shards_come_in_natural_order_whatever_order_they_are_given_in")
class _OrdersAsText(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from sorted(sound, key=lambda pair: pair[0]) if len(files) > 9 else sound


@breaks("the_meta_says_what_is_yielded")
class _MiscountsBytes(MappedReader):
    def read_meta(self, files: Any) -> CheckpointMeta:
        meta = super().read_meta(files)
        return CheckpointMeta({name: replace(each, nbytes=each.nbytes + 1) for name, each in meta.items()}, meta.files)


class _Listing(dict[str, Any]):
    files: Any = ()


@breaks("the_meta_is_cores_own_kind_of_mapping")
class _ListsInADict(MappedReader):
    def read_meta(self, files: Any) -> Any:
        meta = super().read_meta(files)
        listing = _Listing(meta)
        listing.files = meta.files
        return listing


@breaks("listing_the_tensors_reads_none_of_them")
class _ReadsToList(MappedReader):
    def read_meta(self, files: Any) -> CheckpointMeta:
        meta = super().read_meta(files)
        for file in files:
            Path(file).read_bytes()
        return meta


# --- parts -------------------------------------------------------------------------------------------------------


@breaks("a_filter_decides_or_is_refused")
class _IgnoresFilter(MappedReader):
    def iter_weights(self, files: Any, *, key_filter: Any = None, **arguments: Any) -> Pairs:
        return super().iter_weights(files, **arguments)


@breaks("a_filter_skips_tensors_before_they_are_read", "owned")
class _ReadsWhatIsNotWanted(MappedReader):
    def iter_weights(self, files: Any, *, key_filter: Any = None, **arguments: Any) -> Pairs:
        if key_filter is not None:
            for _ in super().iter_weights(files):
                pass
        yield from super().iter_weights(files, key_filter=key_filter, **arguments)


@breaks("an_error_in_the_filter_is_the_callers")
class _SwallowsErrors(MappedReader):
    def iter_weights(self, files: Any, *, key_filter: Any = None, **arguments: Any) -> Pairs:
        def careful(name: str) -> bool:
            try:
                return bool(key_filter(name))
            except Exception:
                return False

        return super().iter_weights(files, key_filter=key_filter and careful, **arguments)


@breaks("slices_agree_with_indexing_in_torch_or_are_refused")
class _IgnoresSlices(MappedReader):
    def iter_weights(self, files: Any, *, slices: Any = None, **arguments: Any) -> Pairs:
        return super().iter_weights(files, **arguments)


@breaks("a_slice_reads_its_own_part", "owned")
class _ReadsWholeTensors(MappedReader):
    def iter_weights(self, files: Any, *, slices: Any = None, **arguments: Any) -> Pairs:
        if slices:
            for _ in super().iter_weights(files):
                pass
        yield from super().iter_weights(files, slices=slices, **arguments)


@breaks("a_slice_that_cannot_be_is_refused_before_the_first_tensor")
class _DropsSlices(MappedReader):
    def iter_weights(self, files: Any, *, slices: Any = None, **arguments: Any) -> Pairs:
        known = self.read_meta(files)
        slices = {name: part for name, part in (slices or {}).items() if name in known}
        return super().iter_weights(files, slices=slices, **arguments)


class Told(MappedReader):
    """Tells of what `stats` makes of the true numbers."""

    def iter_weights(self, files: Any, *, on_progress: Any = None, **arguments: Any) -> Pairs:
        def tell(stats: ReadStats) -> None:
            on_progress(self.stats(stats, arguments.get("key_filter")))

        return super().iter_weights(files, on_progress=on_progress and tell, **arguments)

    def stats(self, stats: ReadStats, key_filter: Any) -> ReadStats:
        return stats


@breaks("progress_adds_up_and_ends_at_the_bytes_wanted")
class _GrowingTotal(Told):
    def stats(self, stats: ReadStats, key_filter: Any) -> ReadStats:
        return replace(stats, bytes_wanted=stats.bytes_read)


@breaks("progress_of_a_part_counts_what_is_wanted")
class _TotalOfAll(Told):
    def stats(self, stats: ReadStats, key_filter: Any) -> ReadStats:
        return stats if key_filter is None else replace(stats, bytes_wanted=6 * stats.bytes_wanted)


# --- into --------------------------------------------------------------------------------------------------------


class Into(ThreadedReader):
    """What is written is changed by `after`, also where it was refused."""

    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        try:
            return super().read_into(files, targets, **arguments)
        finally:
            self.after(targets, **arguments)

    def after(self, targets: Mapping[str, torch.Tensor], **arguments: Any) -> None: ...


@breaks("targets_of_every_dtype_hold_every_byte", "into")
class _LosesHalves(Into):
    def after(self, targets: Mapping[str, torch.Tensor], **arguments: Any) -> None:
        for target in targets.values():
            if isinstance(target, torch.Tensor) and target.dtype is torch.bfloat16:
                target.zero_()


@breaks("what_was_read_into_targets_is_counted", "into")
class _CountsTensorsOnly(ThreadedReader):
    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        return ReadStats(tensors=super().read_into(files, targets, **arguments).tensors)


class _Spills(ThreadedReader):
    """Writes into the first target before it raises one kind of error."""

    kind: type[Exception]

    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        try:
            return super().read_into(files, targets, **arguments)
        except self.kind:
            next(iter(targets.values())).fill_(1)
            raise


@breaks("targets_that_do_not_fit_are_refused_before_any_write", "into")
class _ChecksLate(_Spills):
    kind = TargetMismatchError


@breaks("a_damaged_file_is_an_error_before_anything_is_written", "into")
class _LooksLate(_Spills):
    kind = CheckpointError


@breaks("what_has_no_memory_of_its_own_is_refused", "into")
class _SkipsMeta(ThreadedReader):
    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        kept = {name: each for name, each in targets.items() if not getattr(each, "is_meta", False)}
        return super().read_into(files, kept, **arguments)


@breaks("two_targets_in_one_memory_are_refused", "into")
class _OneByOne(ThreadedReader):
    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        memories = {each.untyped_storage().data_ptr() for each in targets.values() if isinstance(each, torch.Tensor)}
        if len(memories) == 1 < len(targets):
            return [super(_OneByOne, self).read_into(files, {n: t}, **arguments) for n, t in targets.items()][-1]
        return super().read_into(files, targets, **arguments)


@breaks("strided_targets_are_filled_and_nothing_beside_them", "into")
class _FillsCopies(ThreadedReader):
    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        plain = {n: t.contiguous() if _is_strided(t) else t for n, t in targets.items()}
        return super().read_into(files, plain, **arguments)


def _is_strided(target: Any) -> bool:
    return isinstance(target, torch.Tensor) and not target.is_contiguous() and 0 not in target.stride()


@breaks("slices_fill_their_targets", "into")
class _LosesSlices(Into):
    def after(self, targets: Mapping[str, torch.Tensor], **arguments: Any) -> None:
        for name in arguments.get("slices") or ():
            targets[name].zero_()


@breaks("only_the_named_targets_are_filled", "into")
class _FirstFileOnly(ThreadedReader):
    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        first = {name: each for name, each in targets.items() if not name.startswith("s3")}
        return super().read_into(files, first, **arguments)


# --- memory ------------------------------------------------------------------------------------------------------


@breaks("every_tensor_stays_as_it_was_when_all_are_kept")
class _OneBuffer(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if self.count(files) != 120:
            yield from sound
            return
        buffer = torch.empty(3, 5)
        for name, values in sound:
            yield name, buffer.copy_(values)


@breaks("tensors_outlive_generator_reader_and_file_name")
class _TakesBack(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        given = []
        try:
            for name, values in sound:
                given.append(values)
                yield name, values
        except GeneratorExit:
            for values in given:
                values.zero_()


@breaks("tensors_are_aligned_as_declared")
class _Unaligned(Changed):
    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        if name.endswith(".x"):
            data = bytearray(1) + bytearray(values.view(torch.uint8).numpy().tobytes())
            values = torch.frombuffer(data, dtype=values.dtype, offset=1)
        yield name, values


@breaks("a_write_reaches_neither_the_file_nor_another_tensor")
class _WritesThrough(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if self.count(files) != 4 or len(files) != 2 or set(arguments) - {"on_progress"}:
            yield from sound
            return
        for name, meta in self.read_meta(files).items():
            yield name, _mapped(meta, shared=True)


def _mapped(meta: Any, *, shared: bool) -> torch.Tensor:
    """A float32 tensor as a view of its whole file, with no further questions."""
    file = torch.from_file(meta.file, shared=shared, size=os.path.getsize(meta.file), dtype=torch.uint8)
    return file[meta.offset : meta.offset + meta.nbytes].view(torch.float32).view(meta.shape)


class _Copies(MappedReader):
    def __init__(self) -> None:
        super().__init__(copy=True)


breaks("views_of_the_file_are_yielded_where_declared_and_nowhere_else")(_Copies)


@breaks("memory_is_bounded", "owned")
class _ReadsAllFirst(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from list(sound)


@breaks("tensors_arrive_on_each_device")
class _NoMeta(MappedReader):
    def iter_weights(self, files: Any, *, device: str = "cpu", **arguments: Any) -> Pairs:
        return super().iter_weights(files, device=device.replace("meta", "cpu"), **arguments)


@breaks("a_device_that_does_not_exist_is_refused")
class _AnyDevice(MappedReader):
    def iter_weights(self, files: Any, *, device: str = "cpu", **arguments: Any) -> Pairs:
        return super().iter_weights(files, device=device.replace("warp", "cpu"), **arguments)


@breaks("a_drained_reader_leaves_nothing_open_although_tensors_are_kept")
class _NeverCloses(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        yield from sound
        if files:
            os.open(files[0], os.O_RDONLY)


@breaks("a_reader_that_is_stopped_leaves_nothing_open")
class _ClosesAtTheEndOnly(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        descriptor = os.open(files[0], os.O_RDONLY) if len(files) == 4 else None
        yield from sound
        if descriptor is not None:
            os.close(descriptor)


# --- processes ---------------------------------------------------------------------------------------------------


@breaks("one_reader_serves_several_passes_at_once")
class _OneAtATime(Changed):
    turn = 0

    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        self.turn += 1
        mine = self.turn
        for pair in sound:
            if mine != self.turn:
                raise RuntimeError("another pass began")
            yield pair


@breaks("threads_read_for_it_only_where_that_is_declared")
class _HelpedUnseen(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        done = threading.Event()
        helper = threading.Thread(target=done.wait)
        helper.start()
        try:
            yield from sound
        finally:
            done.set()
            helper.join()


@breaks("a_spawned_process_reads")
class _NeedsItsParent(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if len(files) == 2 and multiprocessing.parent_process() is not None:
            raise RuntimeError("the state of the parent is not here")
        yield from sound


@breaks("a_forked_child_reads_and_keeps_what_its_parent_read")
class _KnowsItsProcess(Changed):
    def __init__(self) -> None:
        super().__init__()
        self.process = os.getpid()

    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if self.process != os.getpid():
            raise RuntimeError("made in another process")
        yield from sound


@breaks("the_state_of_the_process_is_left_alone")
class _Remembers(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        os.environ["BROKEN_READER_PASSES"] = str(int(os.environ.get("BROKEN_READER_PASSES", "0")) + 1)
        yield from sound


# --- refusals ----------------------------------------------------------------------------------------------------


@breaks("a_broken_file_has_one_error_from_every_entrance_before_the_first_tensor")
class _FindsOutLater(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        try:
            yield from super().iter_weights(files, **arguments)
        except (CheckpointProblems, DuplicateTensorError):
            raise
        except CheckpointError:
            yield from super().iter_weights(files[:1], **arguments)
            raise


@breaks("a_filter_does_not_hide_a_broken_file")
class _OpensWhatItNeeds(MappedReader):
    def iter_weights(self, files: Any, *, key_filter: Any = None, **arguments: Any) -> Pairs:
        if key_filter is not None:
            files = [file for file in files if self.is_sound(file)]
        return super().iter_weights(files, key_filter=key_filter, **arguments)

    def is_sound(self, file: Any) -> bool:
        try:
            self.read_meta([file])
        except CheckpointError:
            return False
        return True


@breaks("all_broken_files_are_named_at_once")
class _OneByOneOnly(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        try:
            return super().iter_weights(files, **arguments)
        except CheckpointProblems as error:
            raise error.problems[0] from None

    def read_meta(self, files: Any) -> CheckpointMeta:
        try:
            return super().read_meta(files)
        except CheckpointProblems as error:
            raise error.problems[0] from None


@breaks("a_file_that_was_mended_or_replaced_is_read_anew")
class _NeverForgets(MappedReader):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        known: dict[tuple[str, ...], Any] = {}
        read = self._headers.read
        self._headers.read = lambda files: known.setdefault(tuple(map(str, files)), read(files))  # type: ignore[method-assign]


@breaks("what_is_written_to_a_file_meanwhile_is_an_error_or_has_no_part_in_the_tensors")
class _NeverLooks(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if len(files) != 3 or self.count(files) != 6 or arguments:
            yield from sound
            return
        for name, meta in self.read_meta(files).items():
            yield name, _mapped(meta, shared=False)


@breaks("paths_may_be_text_or_path_objects")
class _TextOnly(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        if any(isinstance(file, Path) for file in files):
            raise TypeError("paths must be text")
        return super().iter_weights(files, **arguments)


@breaks("what_is_no_list_of_files_is_refused")
class _TakesOnePath(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        return super().iter_weights(_as_list(files), **arguments)

    def read_meta(self, files: Any) -> CheckpointMeta:
        return super().read_meta(_as_list(files))


def _as_list(files: Any) -> Any:
    return [files] if isinstance(files, (str, Path)) else files


@breaks("the_same_file_twice_is_refused")
class _TakesEachOnce(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        return super().iter_weights(_each_once(files), **arguments)

    def read_meta(self, files: Any) -> CheckpointMeta:
        return super().read_meta(_each_once(files))


def _each_once(files: Any) -> Any:
    if isinstance(files, list) and all(os.path.exists(file) for file in files):
        return list({os.path.realpath(file): file for file in files}.values())
    return files


@breaks("a_name_in_two_files_is_refused")
class _LastOneWins(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        try:
            return super().iter_weights(files, **arguments)
        except DuplicateTensorError as error:
            if error.tensor != "x":
                raise
            return super().iter_weights(files[-1:], **arguments)


@breaks("errors_survive_the_way_to_another_process")
class _KeepsFrames(MappedReader):
    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        with _Kept():
            return super().iter_weights(files, **arguments)

    def read_meta(self, files: Any) -> CheckpointMeta:
        with _Kept():
            return super().read_meta(files)


class _Kept:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            error.found_by = lambda: None
