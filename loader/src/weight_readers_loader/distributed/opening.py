# SPDX-License-Identifier: Apache-2.0
"""Open one checkpoint on many ranks: the first resolves and plans, the others check that they see the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weight_readers import ConfigError
from weight_readers_loader.arguments import whole
from weight_readers_loader.checkpoint import Checkpoint
from weight_readers_loader.distributed.operation import Operation
from weight_readers_loader.distributed.plan import Plan
from weight_readers_loader.distributed.team import Team
from weight_readers_loader.opening import open_checkpoint

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


def opened(
    operation: Operation, team: Team, reference: Any, settings: Settings, arguments: dict[str, Any]
) -> tuple[Plan, Checkpoint | None]:
    """The plan of all, and this rank's own checkpoint where it is one that reads.

    A rank that is sent everything needs no files: it takes the plan of the first. The others open theirs after the
    first one has, so that one rank downloads and resolves, and compare.
    """
    operation.agree("settings", [settings.how, settings.bucket_bytes], "was told to load in another way")
    if team.leads:
        checkpoint = _open(operation, reference, settings, arguments)
        plan = Plan.of(checkpoint)
        operation.publish("plan", plan.to_json())
        operation.meet()
        operation.withdraw("plan")
        return plan, checkpoint
    first = Plan.from_json(operation.receive("plan"))
    own = _open(operation, reference, settings, arguments) if settings.needs_files else None
    if own is not None:
        plan = Plan.of(own)
        plan.must_equal(first, rank=team.rank, leader=team.ranks[0])
    operation.meet()
    return (first if own is None else plan), own


def _open(operation: Operation, reference: Any, settings: Settings, arguments: dict[str, Any]) -> Checkpoint:
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
    if checkpoint.has_adapters and settings.how != "slices":
        raise ValueError(
            f"adapters and how={settings.how!r} exclude each other: what ranks send is as the files have it. "
            "Load with how='slices', or without adapters"
        )
    return checkpoint


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
