# SPDX-License-Identifier: Apache-2.0
"""The ranks that load together: a process group of the caller's, and a corner of its store."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from weight_readers_loader.distributed.board import Board
from weight_readers_loader.distributed.peers import Identity

_NO_GROUP = (
    "no process group was made in this process: start the ranks with torchrun and call "
    "torch.distributed.init_process_group, or use open_checkpoint, which needs no group"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Team:
    """``ranks`` are the members by their number in the whole job, the first of them leads; ``own`` is this one's
    place among them."""

    group: Any
    ranks: tuple[int, ...]
    own: int
    board: Board

    @classmethod
    def of(cls, group: Any = None) -> Team:
        """The members of ``group``, of all ranks for None. Runs no collective, waits for nobody.

        Every member has to call it as often as the others do. Raises ValueError without a process group, and where
        this rank is none of its members.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(_NO_GROUP)
        if (own := dist.get_rank(group)) < 0:
            raise ValueError(f"rank {dist.get_rank()} is no member of the group that it was given")
        ranks = tuple(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
        members = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
        board = Board(_store(), f"weight_readers/{members}")
        team = cls(group=group, ranks=ranks, own=own, board=board.below(str(board.count(f"opened/{own}"))))
        team.board.put(f"who/{team.rank}", Identity.own().to_json())
        return team

    @property
    def rank(self) -> int:
        return self.ranks[self.own]

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def leads(self) -> bool:
        return self.own == 0

    @cached_property
    def backends(self) -> dict[str, str]:
        """Device type -> the backend that moves its tensors."""
        config = str(dist.get_backend_config(self.group))
        pairs = (part.partition(":") for part in config.split(","))
        return {device: backend for device, _, backend in pairs if backend}

    def carrier(self, device: str) -> str:
        """Where bytes for ``device`` are while they go from rank to rank: there, or else in host memory."""
        kinds = [device, "cpu", "cuda"]
        kind = next((kind for kind in kinds if self.backends.get(kind.split(":")[0])), "cpu")
        return f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else kind

    def broadcast(self, data: torch.Tensor, owner: int) -> Any:
        """Begin to send ``data`` (uint8) from the member ``owner`` to all; returns the work."""
        return dist.broadcast(data, src=self.ranks[owner], group=self.group, async_op=True)


def _store() -> Any:
    # The one store that every rank of the job has. torch has no public name for it, and no transport of our own is
    # wanted beside it; the name is the same from 2.4 to 2.13.
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
