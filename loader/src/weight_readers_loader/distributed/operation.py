# SPDX-License-Identifier: Apache-2.0
"""What ranks do together, step by step: nobody enters a collective before all are there, and all end alike.

A rank waits for others at the store only, where it hears of failures and sees who is behind. A collective is begun
once every rank has said that its bytes are ready, so that it lasts as long as the bytes travel, however long one rank
reads: a collective's own time-out never ends a load that merely is slow.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from weight_readers import DistributedError, PlanMismatchError, RankLostError, ReadStats, WeightReadersError
from weight_readers_loader.distributed.failures import retold, told, with_rank
from weight_readers_loader.distributed.heart import Heart
from weight_readers_loader.distributed.peers import Identity, Watch
from weight_readers_loader.distributed.team import Team

LOST_AFTER = 10.0
"""Seconds without a sign of life after which a rank on another machine counts as lost."""
_LINGER = 3.0
_LOOK = 0.5
_NAP = (0.0005, 0.05)
"""The shortest and the longest."""


class Operation:
    """A context. An error that leaves it on one rank leaves it on all, the same one and with the rank it began on."""

    def __init__(self, team: Team, name: str, *, timeout: float) -> None:
        self._team = team
        self._board = team.board.below(name)
        self._heart = Heart(lambda beat: self._board.put(f"beat/{team.rank}", beat))
        self._timeout = timeout
        self._step = 0
        self._checked = time.monotonic()
        self._failed_at: float | None = None
        self._shared: WeightReadersError | None = None

    def __enter__(self) -> Operation:
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heart.stop()
        if error is None:
            return
        try:
            if error is not self._shared:
                self._fail(error)
        finally:
            self._part("heard", seconds=_LINGER)

    def _part(self, word: str, *, seconds: float) -> None:
        """The first rank goes last: with it often goes the store, where the others still have to look."""
        with contextlib.suppress(DistributedError):
            if not self._team.leads:
                self._board.count(word)
                return
            self._wait(lambda: self._board.counted(word) == self._team.size - 1, seconds=seconds)

    def _fail(self, error: BaseException) -> None:
        """Tell the others, unless another rank was first: then its error is that of all."""
        try:
            if self._board.count("failures") == 1:
                self._board.put("failed", told(error, self._team.rank))
                with_rank(error, self._team.rank)
                return
            self._wait(lambda: self._board.has("failed"), seconds=_LOOK)
            first = self._board.find("failed")
        except DistributedError:  # no store, no word
            return
        if first is not None and not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise retold(first) from error

    def working_on(self, file: str) -> None:
        """What the others hear of while they wait, and should this rank die."""
        self._heart.at(file)

    def progress(self, stats: ReadStats | None = None) -> None:
        """Called while this rank reads: now and then it looks whether the others go on."""
        if time.monotonic() - self._checked > _LOOK:
            self.check()
            if (gone := self._watch(self._watched()).gone()) is not None:
                raise gone

    def check(self) -> None:
        """Raise what another rank failed with."""
        self._checked = time.monotonic()
        if (failure := self._board.find("failed")) is not None:
            self._raise(retold(failure))

    def _check_moving(self) -> None:
        """As `check` while bytes are on their way, which they are for long only if a rank is not there any more."""
        if (failure := self._board.find("failed")) is None:
            return
        now = time.monotonic()
        self._failed_at = now if self._failed_at is None else self._failed_at
        error = retold(failure)
        if isinstance(error, RankLostError) or now - self._failed_at > _LINGER:
            self._raise(error)

    def meet(self) -> None:
        """Go on once every rank is here. Raises the error of a rank that failed, was lost, or came too late."""
        self._step += 1
        step = self._step
        self._heart.step = step
        if self._board.count(f"at/{step}") == self._team.size:
            self.check()  # one that was here may have been interrupted meanwhile
            self._board.put(f"go/{step}", b"")
            if step > 1:  # all are here, so nobody looks at the step before any more
                self._board.wipe(f"at/{step - 1}")
                self._board.wipe(f"go/{step - 1}")
        self._await(lambda: self._board.has(f"go/{step}"))

    def publish(self, key: str, value: bytes) -> None:
        self._board.put_long(key, value)

    def withdraw(self, key: str) -> None:
        """Take back what all have received."""
        self._board.wipe_long(key)

    def receive(self, key: str) -> bytes:
        """What the first rank publishes, once it has."""
        self._heart.step = self._step + 1  # this rank is not the one that is waited for
        self._await(lambda: self._board.has(key), step=self._step + 1)
        self._heart.step = self._step
        return self._board.get_long(key)

    def gather(self, key: str, value: bytes) -> list[bytes]:
        """The value (text) of every rank, on every rank."""
        self._board.put(f"{key}/of/{self._team.rank}", value)
        self.meet()
        if self._team.leads:
            found = [self._board.get(f"{key}/of/{rank}").decode() for rank in self._team.ranks]
            self.publish(key, json.dumps(found).encode())
        gathered = [text.encode() for text in json.loads(self.receive(key))]
        self._part(f"{key}/taken", seconds=LOST_AFTER)
        return gathered

    def agree(self, key: str, value: Any, said: str) -> None:
        """Raise PlanMismatchError on all where ``value`` (plain data) is not that of the first rank."""
        own = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest().encode()
        if self._team.leads:
            self._board.put(key, own)
            return
        self._await(lambda: self._board.has(key), step=self._step + 1)
        if self._board.get(key) != own:
            first, rank = self._team.ranks[0], self._team.rank
            raise PlanMismatchError(
                f"rank {rank} {said} than rank {first}", rank=rank, fix="Make the same calls on every rank"
            )

    def broadcast(self, data: Sequence[Any], owner: int) -> None:
        """Send ``data`` (uint8 each) of the member ``owner`` to all, once every rank is ready."""
        self.meet()
        try:
            works = [self._team.broadcast(each, owner) for each in data]
            # All are in it by now, so it ends, unless one died: who leaves it early leaves the group out of step.
            self._await(lambda: all(work.is_completed() for work in works), check=self._check_moving)
            for work in works:
                work.wait()
        except WeightReadersError:
            raise
        except RuntimeError as error:
            self._broken(error)

    def _broken(self, error: RuntimeError) -> None:
        """A collective failed: say which rank is gone, as soon as that can be seen."""
        watch = self._watch(self._team.ranks)
        deadline = time.monotonic() + LOST_AFTER
        while time.monotonic() < deadline:
            self.check()
            if (gone := watch.gone()) is not None:
                raise gone from error
            time.sleep(_NAP[1])
        first = str(error).partition("\n")[0]
        raise RankLostError(f"the ranks lost touch while bytes were on their way: {first}") from error

    def _await(
        self, ready: Callable[[], bool], *, step: int | None = None, check: Callable[[], None] | None = None
    ) -> None:
        watch, looked, naps = self._watch(self._watched()), time.monotonic(), _naps()
        # Failures are looked at second: where all have met all go on, or some would enter a collective and some not.
        while not ready():
            (check or self.check)()
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if (error := watch.look(self._step if step is None else step)) is not None:
                    raise error
            time.sleep(next(naps))

    def _wait(self, ready: Callable[[], bool], *, seconds: float) -> None:
        deadline, naps = time.monotonic() + seconds, _naps()
        while not ready() and time.monotonic() < deadline:
            time.sleep(next(naps))

    def _watched(self) -> tuple[int, ...]:
        """The first rank watches all and the others the first: as many looks as there are ranks, not their square."""
        others = tuple(rank for rank in self._team.ranks if rank != self._team.rank)
        return others if self._team.leads else self._team.ranks[:1]

    def _watch(self, ranks: tuple[int, ...]) -> Watch:
        return Watch(
            [rank for rank in ranks if rank != self._team.rank],
            find=lambda rank: self._board.find(f"beat/{rank}"),
            identities=self._identity,
            patience=self._timeout,
            lost_after=LOST_AFTER,
        )

    def _identity(self, rank: int) -> Identity | None:
        text = self._team.board.find(f"who/{rank}")
        return None if text is None else Identity(**json.loads(text))

    def _raise(self, error: WeightReadersError) -> None:
        self._shared = error
        raise error


def _naps() -> Iterator[float]:
    """Seconds between looks: short ones at first, as others are mostly close behind, so that little is overslept."""
    nap = _NAP[0]
    while True:
        yield nap
        nap = min(1.25 * nap, _NAP[1])
