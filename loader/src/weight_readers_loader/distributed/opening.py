# SPDX-License-Identifier: Apache-2.0
"""Open one checkpoint on many ranks: the first resolves and plans, the others check that they see the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weight_readers import ConfigError
from weight_readers_loader.arguments import instance, whole
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.config import Layer, LayeredConfig, LoadConfig
from weight_readers_loader.config.adapting import configured_adapters
from weight_readers_loader.contents import Contents
from weight_readers_loader.distributed.operation import Operation
from weight_readers_loader.distributed.plan import Plan
from weight_readers_loader.distributed.team import Team
from weight_readers_loader.opening import open_checkpoint
from weight_readers_loader.resolve import at_commit

WAYS = ("broadcast", "partition", "slices")
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How ranks load together: the same on all of them."""

    how: str
    bucket_bytes: int
    timeout: float

    def __post_init__(self) -> None:
        if self.how not in WAYS:
            raise ValueError(f"how must be one of {', '.join(WAYS)}, not {self.how!r}")
        whole("bucket_bytes", self.bucket_bytes, least=1)
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or not self.timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, not {self.timeout!r}")

    @property
    def needs_files(self) -> bool:
        """Whether every rank reads, not the first one only."""
        return self.how != "broadcast"


def way(how: str | None, config: LayeredConfig) -> str:
    """``how``, or what the configuration says where that is None. Raises ConfigError where it says nothing."""
    if how is not None:
        return how
    if config.value("enable_broadcast_weight_load"):
        return "broadcast"
    raise ConfigError(
        f"nothing says how the ranks load: how must be one of {', '.join(WAYS)}",
        option="enable_broadcast_weight_load",
        fix="Give how=, or enable_broadcast_weight_load=True in the configuration",
    )


def of_one_rank(config: LayeredConfig) -> LayeredConfig:
    """``config`` for what one rank opens by itself: that others read for it, or it for them, is said by then."""
    values = LoadConfig.of({"enable_broadcast_weight_load": False}, source="open_distributed")
    return config.over(Layer(source="open_distributed", values=values))


def opened(
    operation: Operation,
    team: Team,
    reference: Any,
    settings: Settings,
    arguments: dict[str, Any],
    config: LayeredConfig,
) -> tuple[Contents, Checkpoint | None]:
    """What all ranks have agreed on, and this rank's own checkpoint where it is one that reads.

    A rank that is sent everything needs no files: it takes the plan of the first. The others open theirs after the
    first one has, so that one rank downloads and resolves, and compare; of the Hub at the commit that the first found,
    wherever a branch leads by then.
    """
    operation.agree("settings", [settings.how, settings.bucket_bytes], "was told to load in another way")
    if team.leads:
        checkpoint = _open(operation, reference, arguments)
        plan = Plan.of(checkpoint)
        operation.publish("plan", plan.to_json())
        contents = _contents(operation, plan, arguments, config)
        operation.meet()
        operation.withdraw("plan")
        return contents, checkpoint
    first = Plan.from_json(operation.receive("plan"))
    own = _open(operation, at_commit(reference, first.commit), arguments) if settings.needs_files else None
    plan = first if own is None else Plan.of(own)
    plan.must_equal(first, rank=team.rank, leader=team.ranks[0])
    contents = _contents(operation, plan, arguments, config)
    operation.meet()
    return contents, own


def _open(operation: Operation, reference: Any, arguments: dict[str, Any]) -> Checkpoint:
    operation.working_on(os.fspath(reference))
    checkpoint = open_checkpoint(reference, **arguments)
    verify = checkpoint.config.setting("verify")
    if verify is not None and verify.value:
        raise ConfigError(
            f"{verify}: no rank reads whole files, so that none can compare them with digests",
            option="verify",
            source=verify.source,
            fix="Say false, and run `weight-readers verify` before",
        )
    return checkpoint


def _contents(operation: Operation, plan: Plan, arguments: Mapping[str, Any], config: LayeredConfig) -> Contents:
    """The plan with this rank's adapters, which have to make of it what those of the first rank make.

    What travels is as the files have it, and each rank adapts what has come. Raises AdapterError on all ranks.
    """
    given = arguments.get("adapters", ())
    instance("adapters", given, Sequence, "a list of adapters")
    adapters = (*given, *configured_adapters(config))
    contents = Contents(tensors=plan.tensors, aliases=plan.aliases, adapters=adapters)
    made, sources = contents.adapted.tensors, contents.adapted.sources
    rows = [[name, meta.dtype, meta.stored_shape, sources[name]] for name, meta in made.items()] if adapters else []
    operation.agree("adapted", rows, "has adapters that make other tensors")
    return contents


@dataclass
class Talk:
    """Where what readers say of files goes: to the operation that runs."""

    operation: Operation

    def working_on(self, path: str) -> None:
        self.operation.working_on(path)
        self.operation.progress()


def telling(on_file: Callable[[str], None] | None, tell: Callable[[str], None]) -> Callable[[str], None]:
    """Both: what the caller wants to hear of a file, and what the other ranks do."""

    def told(path: str) -> None:
        tell(path)
        if on_file is not None:
            on_file(path)

    return told
