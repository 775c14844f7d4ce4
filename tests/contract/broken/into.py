# SPDX-License-Identifier: Apache-2.0
"""Readers that leave something else in targets than they should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from contract.broken.registry import breaks

from weight_readers import CheckpointError, ReadStats, TargetMismatchError
from weight_readers_threaded.reader import ThreadedReader


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


@breaks("memory_is_bounded_while_targets_are_filled", "into")
class _HoldsAll(ThreadedReader):
    def read_into(self, files: Any, targets: Any, **arguments: Any) -> ReadStats:
        held = list(self.iter_weights(files))
        try:
            return super().read_into(files, targets, **arguments)
        finally:
            held.clear()
