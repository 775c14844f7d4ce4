# SPDX-License-Identifier: Apache-2.0
"""Readers that yield, read or count another part than was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contract.broken.bases import Pairs
from contract.broken.registry import breaks

from weight_readers import ReadStats
from weight_readers_mmap.reader import MappedReader


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
        if any(isinstance(part, tuple) for part in (slices or {}).values()):
            raise ValueError("one slice of each tensor")
        return super().iter_weights(files, **arguments)


@breaks("slices_of_several_dimensions_agree_with_indexing_in_torch_or_are_refused")
class _TakesTwoSlicesAtMost(MappedReader):
    def iter_weights(self, files: Any, *, slices: Any = None, **arguments: Any) -> Pairs:
        slices = {name: part[:2] if isinstance(part, tuple) else part for name, part in (slices or {}).items()}
        return super().iter_weights(files, slices=slices, **arguments)


@breaks("slices_of_several_dimensions_read_what_they_have_in_common", "owned")
class _ReadsByOneDimension(MappedReader):
    def iter_weights(self, files: Any, *, slices: Any = None, **arguments: Any) -> Pairs:
        single = {name: part[0] for name, part in (slices or {}).items() if isinstance(part, tuple)}
        if single:
            for _ in super().iter_weights(files, slices=single):
                pass
        yield from super().iter_weights(files, slices=slices, **arguments)


@breaks("a_slice_reads_its_own_part", "owned")
class _ReadsWholeTensors(MappedReader):
    def iter_weights(self, files: Any, *, slices: Any = None, **arguments: Any) -> Pairs:
        if slices and not any(isinstance(part, tuple) for part in slices.values()):
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
