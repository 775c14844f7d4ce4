# SPDX-License-Identifier: Apache-2.0
"""`open_distributed`: one checkpoint for all ranks of a process group, each of which reads its part or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from weight_readers import TensorMeta, TensorPart
from weight_readers_loader.arguments import device_of, flags, function, real_device
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.config.arguments import configured
from weight_readers_loader.contents import Contents
from weight_readers_loader.distributed.load import Load
from weight_readers_loader.distributed.opening import MIB, Settings, Talk, of_one_rank, opened, telling, way
from weight_readers_loader.distributed.operation import Operation
from weight_readers_loader.distributed.report import DistributedReport
from weight_readers_loader.distributed.team import Team
from weight_readers_loader.wanted import KeyFilter


def open_distributed(
    reference: str | os.PathLike[str],
    *,
    how: str | None = None,
    group: Any = None,
    bucket_bytes: int = 256 * MIB,
    timeout: float = 600.0,
    on_file: Callable[[str], None] | None = None,
    **arguments: Any,
) -> DistributedCheckpoint:
    """Open ``reference`` on all ranks of ``group`` (all ranks of the job for None). Every member has to call it.

    how: ``broadcast``: the first member reads and the others receive, and need no files. ``partition``: each member
        reads an equal part of the bytes, and all end with everything. ``slices``: each member reads only what it
        keeps. By default what the configuration says: ``enable_broadcast_weight_load`` is ``broadcast``.
    bucket_bytes: how much travels at once.
    timeout: seconds that a rank is waited for which is alive and does not get on. One that reads, however slowly, is
        waited for, whatever the time-out of the group's collectives.
    on_file, arguments: as those of `open_checkpoint`. Adapters have to make the same tensors on every rank; they work
        on what has come, and bytes travel as the files have them.

    Raises on every rank the same error, with the rank on which it began: `CheckpointError` for whatever is wrong with
    the files, PlanMismatchError where a rank sees others, RankLostError, RankLaggingError. A group that lost a rank in
    the middle of a load cannot be used again.
    """
    team = Team.of(group)
    with Operation(team, "open", timeout=timeout if _is_number(timeout) else 600.0) as operation:
        config = configured(arguments.get("config"))
        settings = Settings(how=way(how, config), bucket_bytes=bucket_bytes, timeout=timeout)
        function("on_file", on_file, "a file's path")
        talk = Talk(operation)
        arguments |= {"on_file": telling(on_file, talk.working_on), "config": of_one_rank(config)}
        contents, checkpoint = opened(operation, team, reference, settings, arguments, config)
    device = config.value("device")
    return DistributedCheckpoint(os.fspath(reference), team, settings, contents, checkpoint, talk, device)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and value > 0


class DistributedCheckpoint:
    """One checkpoint, open on every rank of a group. Each method is called by all members, with the same arguments.

    ``tensors`` maps each name to its `TensorMeta` as the first rank sees it, or this one where it reads, and
    ``adapted`` each one after the adapters (the same where there are none). ``report`` is the `DistributedReport` of
    the latest `state_dict` or `load_into`.
    """

    def __init__(
        self,
        reference: str,
        team: Team,
        settings: Settings,
        contents: Contents,
        checkpoint: Checkpoint | None,
        talk: Talk,
        device: str | None = None,
    ) -> None:
        self.reference = reference
        self.tensors: Mapping[str, TensorMeta] = contents.tensors
        self.adapted: Mapping[str, TensorMeta] = contents.adapted.tensors
        self.aliases = contents.aliases
        self.report: DistributedReport | None = None
        self._team, self._settings, self._checkpoint, self._talk = team, settings, checkpoint, talk
        self._contents = contents
        self._loads = 0
        self._device = device

    def state_dict(
        self,
        *,
        device: str | torch.device | None = None,
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorPart] | None = None,
        resolve_aliases: bool = False,
        show_progress: bool = False,
    ) -> dict[str, torch.Tensor]:
        """All wanted tensors by name on every rank; with ``how="slices"`` this rank's part of each.

        device: by default that of ``config``, or else the host.
        slices: what this rank wants of each tensor, for ``how="slices"`` only. By default an equal part of the rows,
            as ``Shard(0)`` cuts; tensors without dimensions are whole on every rank. With ``slices`` given, tensors
            that are not in it are whole.
        """
        with self._operation() as operation:
            flags(resolve_aliases=resolve_aliases, show_progress=show_progress)
            function("key_filter", key_filter, "a name that says whether the tensor is wanted")
            self._contents.check_aliases(resolve_aliases)
            load = self._load(operation, show_progress)
            names = [name for name in self.tensors if key_filter is None or key_filter(name)]
            tensors = load.tensors(names, device_of(device or self._device or "cpu"), slices)
            operation.meet()
            aliases = self._contents.named(tensors, resolve_aliases=resolve_aliases)
            self.report = load.report(self.reference, aliases=aliases)
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
        show_progress: bool = False,
    ) -> DistributedReport:
        """Fill this rank's module or mapping, as `Checkpoint.load_into` does; of a DTensor, this rank's part.

        With ``how="slices"`` only the bytes of those parts are read, and of plain tensors all; ``owned`` is as there.
        With the other ways tensors are owned in any case. Tensors on the meta device are replaced once every rank has
        all that it needs.
        """
        with self._operation() as operation:
            flags(strict=strict, cast=cast, owned=owned, resolve_aliases=resolve_aliases, show_progress=show_progress)
            load = self._load(operation, show_progress)
            placement = self._contents.placement(
                target, resolve_aliases=resolve_aliases, strict=strict, cast=cast, agreed=operation.meet
            )
            named = self._device if device is None else device
            load.fill(placement, None if named is None else real_device(named), owned=owned)
            self.report = load.report(self.reference, **placement.remarks())
        return self.report

    def _operation(self) -> Operation:
        self._loads += 1
        self._talk.operation = Operation(self._team, f"load{self._loads}", timeout=self._settings.timeout)
        return self._talk.operation

    def _load(self, operation: Operation, show_progress: bool) -> Load:
        return Load(
            operation=operation,
            team=self._team,
            settings=self._settings,
            contents=self._contents,
            checkpoint=self._checkpoint,
            show_progress=show_progress,
        )
