# SPDX-License-Identifier: Apache-2.0
"""Who the other ranks are, and which of them are gone, silent, or do not get on."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from weight_readers import DistributedError, RankLaggingError, RankLostError
from weight_readers_loader.wording import counted

_log = logging.getLogger("weight_readers.distributed")
_PROC = Path("/proc")
NOTICE = 3.0
"""Seconds after which a rank that is waited for is named in the log."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A process: the machine and process namespace it is in, its number there, and when it began."""

    host: str
    node: str
    pid: int
    begun: str

    @classmethod
    def own(cls) -> Identity:
        pid = os.getpid()
        return cls(host=socket.gethostname(), node=_node(), pid=pid, begun=_begun(pid) or "")

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def is_gone(self, here: str) -> bool | None:
        """Whether the process has ended; None where that cannot be seen, from another machine."""
        if not self.begun or self.node != here:
            return None
        return _begun(self.pid) != self.begun


def _node() -> str:
    """Equal for processes that see each other. Empty where there is no /proc."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return ""


def _begun(pid: int) -> str | None:
    """When the process began, in ticks; None for none, and for one that is dead and only not reaped yet."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True, kw_only=True)
class Beat:
    """A sign of life: how often it came, the step that was reached, bytes moved so far, and the file at work."""

    number: int = 0
    step: int = 0
    moved: int = 0
    file: str = ""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass
class _Seen:
    beat: Beat | None = None
    heard: float = 0.0
    moved: float = 0.0


class Watch:
    """What one rank knows of those it waits for.

    A rank on the same machine is gone when its process is; one elsewhere when nothing was heard of it for
    ``lost_after`` seconds. One that is there is waited for as long as it gets on, and ``patience`` seconds longer.

    find: the latest beat of a rank, None before its first. identities: of a rank, as soon as it said who it is.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        *,
        find: Callable[[int], bytes | None],
        identities: Callable[[int], Identity | None],
        patience: float,
        lost_after: float,
        clock: Callable[[], float] = time.monotonic,
        here: str | None = None,
    ) -> None:
        self._find, self._identities = find, identities
        self._patience, self._lost_after, self._clock = patience, lost_after, clock
        self._here = _node() if here is None else here
        now = clock()
        self._seen = {rank: _Seen(heard=now, moved=now) for rank in ranks}
        self._noticed = now

    def look(self, step: int) -> DistributedError | None:
        """The first rank behind ``step`` that is lost or too late, as an error."""
        now = self._clock()
        found = (self._judge(rank, seen, step, now) for rank, seen in self._seen.items())
        return next((error for error in found if error is not None), None)

    def gone(self) -> DistributedError | None:
        """The first rank whose process has ended, as an error."""
        return next((error for rank in self._seen if (error := self._gone(rank)) is not None), None)

    def _gone(self, rank: int) -> DistributedError | None:
        who = self._identities(rank)
        return _lost(rank, who, self._beat(rank)) if who is not None and who.is_gone(self._here) else None

    def _beat(self, rank: int) -> Beat | None:
        text = self._find(rank)
        return None if text is None else Beat(**json.loads(text))

    def _judge(self, rank: int, seen: _Seen, step: int, now: float) -> DistributedError | None:
        if (lost := self._gone(rank)) is not None:
            return lost
        self._hear(rank, seen, now)
        if seen.beat is not None and seen.beat.step >= step:
            return None
        who = self._identities(rank)
        elsewhere = who is not None and who.is_gone(self._here) is None
        if elsewhere and seen.beat is not None and now - seen.heard > self._lost_after:
            return _silent(rank, who, seen.beat, now - seen.heard)
        if now - seen.moved > self._patience:
            return _late(rank, who, seen.beat, now - seen.moved)
        self._notice(rank, who, seen, now)
        return None

    def _hear(self, rank: int, seen: _Seen, now: float) -> None:
        beat = self._beat(rank)
        if beat is None or beat == seen.beat:
            return
        if seen.beat is None or (beat.step, beat.moved, beat.file) != (
            seen.beat.step,
            seen.beat.moved,
            seen.beat.file,
        ):
            seen.moved = now
        seen.beat, seen.heard = beat, now

    def _notice(self, rank: int, who: Identity | None, seen: _Seen, now: float) -> None:
        if now - self._noticed > NOTICE:
            self._noticed = now
            doing = _doing(seen.beat)
            _log.warning("waiting for %s, which %s", _named(rank, who), doing)


def _named(rank: int, who: Identity | None) -> str:
    return f"rank {rank}" + (f" (process {who.pid} on {who.host})" if who is not None else "")


def _doing(beat: Beat | None) -> str:
    if beat is None:
        return "has not begun this load"
    return f"is reading {beat.file}" if beat.file else "has read nothing yet"


def _at(beat: Beat | None) -> str:
    """The file that a rank was last heard to be at: it may have read it by then, and be sending."""
    return f", at {beat.file}" if beat is not None and beat.file else ""


def _lost(rank: int, who: Identity, beat: Beat | None) -> RankLostError:
    return RankLostError(
        f"{_named(rank, who)} died during the load{_at(beat)}",
        rank=rank,
        fix="Its own output says why; a process that was killed is often one that had too little memory",
    )


def _silent(rank: int, who: Identity | None, beat: Beat, seconds: float) -> RankLostError:
    what = f"nothing has been heard of {_named(rank, who)} for {counted(round(seconds), 'second')}"
    what += f", which was at {beat.file}" if beat.file else ""
    return RankLostError(what, rank=rank, fix="See whether its machine is up and can be reached")


def _late(rank: int, who: Identity | None, beat: Beat | None, seconds: float) -> RankLaggingError:
    what = f"{_named(rank, who)} {_doing(beat)} and has not got on for {counted(round(seconds), 'second')}"
    fix = "Every rank of the group has to make the same calls" if beat is None else "See to its storage"
    return RankLaggingError(what, rank=rank, fix=f"{fix}, or give a longer timeout=")


def bytes_moved() -> int:
    """Bytes that this process has read by the kernel's count, from caches too; 0 where that cannot be seen."""
    try:
        lines = (_PROC / "self/io").read_text().splitlines()
    except OSError:
        return 0
    counts: Mapping[str, int] = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
    return counts.get("rchar", 0) + counts.get("read_bytes", 0)
