# SPDX-License-Identifier: Apache-2.0
"""``load`` by several ranks at once, each of which torchrun has started with the same command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from weight_readers import RankLostError, WeightReadersError
from weight_readers_loader.config import LayeredConfig
from weight_readers_loader.distributed import DistributedReport, open_distributed
from weight_readers_loader.wording import some

_SET_BY_LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def load(
    reference: str,
    *,
    how: str,
    layout_arguments: Mapping[str, Any],
    config: LayeredConfig,
    key_filter: Callable[[str], bool] | None,
    owned: bool,
    into: Callable[[], Any] | None,
    then: Callable[[Any], Any] | None,
    cast: bool,
    partial: bool,
    aliases: bool,
    progress: bool,
    on_file: Callable[[str], None],
) -> tuple[Any, DistributedReport]:
    """What ``then`` returned of what this rank was filled with, and its report."""
    with _process_group(config):
        checkpoint = open_distributed(reference, how=how, config=config, on_file=on_file, **layout_arguments)
        shared: dict[str, Any] = {"resolve_aliases": aliases, "show_progress": progress, "device": _device(config)}
        if key_filter is not None and not any(map(key_filter, checkpoint.tensors)):
            raise ValueError(f"no tensor of {reference} matches --filter: it has {some(list(checkpoint.tensors), 5)}")
        if into is None:
            shared["device"] = shared["device"] or "cpu"
            filled: Any = checkpoint.state_dict(key_filter=key_filter, **shared)
        else:
            filled = into()
            checkpoint.load_into(filled, strict=not partial, cast=cast, owned=owned, **shared)
        assert checkpoint.report is not None  # noqa: S101 - both ways of loading make one
        return None if then is None else then(filled), checkpoint.report


@contextmanager
def _process_group(config: LayeredConfig) -> Iterator[None]:
    """That of the job. After an error it is not taken down: one that lost a rank waits for it."""
    if lacking := [name for name in _SET_BY_LAUNCHERS if not os.environ.get(name)]:
        broadcast = config.setting("enable_broadcast_weight_load")
        asked = f"{broadcast} is for several ranks, and " if broadcast is not None and broadcast.value else ""
        raise ValueError(
            f"{asked}there are no other ranks: {', '.join(lacking)} not set. Start it by torchrun: "
            "torchrun --nproc-per-node 2 --no-python weight-readers load REF --broadcast"
        )
    # Nobody waits for a slow reader in a collective, so this is for ranks that do not come at all.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=5))
    yield
    dist.destroy_process_group()


def _device(config: LayeredConfig) -> str | None:
    """Each rank of a machine has a GPU of its own, by its number there."""
    device: str | None = config.value("device")
    if device != "cuda":
        return device
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return f"cuda:{torch.cuda.current_device()}"


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def speaks_of(error: Exception) -> bool:
    """Whether this rank is one that says it: the first, and the one at fault; all, where the first is gone."""
    own, rank = os.environ.get("RANK", "0"), getattr(error, "rank", None)
    if not isinstance(error, WeightReadersError) or is_first() or own == str(rank):
        return True
    return isinstance(error, RankLostError) and rank in (None, 0)
