# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between ranks that load together. The tree is drawn in `weight_readers.errors`."""

from __future__ import annotations

from weight_readers._error import WeightReadersError


class DistributedError(WeightReadersError, RuntimeError):
    """Ranks that load together cannot go on; ``rank`` is the one at fault, None where nobody can tell."""

    def __init__(self, what: str, *, rank: int | None = None, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.rank = rank


class RankFailedError(DistributedError):
    """Another rank failed with an error that is none of weight-readers: its text is in the message."""


class RankLostError(DistributedError):
    """A rank died, or nothing has been heard of it for too long."""


class RankLaggingError(DistributedError, TimeoutError):
    """A rank is alive and has not got on for as long as the others were told to wait."""


class PlanMismatchError(DistributedError, ValueError):
    """A rank sees another checkpoint than the first one, or wants other things of it."""
