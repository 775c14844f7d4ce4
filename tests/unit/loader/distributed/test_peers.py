# SPDX-License-Identifier: Apache-2.0
"""When a rank counts as lost, as late, or as slow: a table over hand-made signs of life and a clock of the test's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from weight_readers import DistributedError, RankLaggingError, RankLostError
from weight_readers_loader.distributed.peers import Beat, Identity, Watch

ELSEWHERE = Identity(host="node7", node="another", pid=1, begun="1")


class Scene:
    """Rank 1 watched by rank 0; ``at`` moves the clock."""

    def __init__(self, who: Identity | None = ELSEWHERE) -> None:
        self.now, self.beat = 0.0, None if who is None else Beat(number=1, step=1, file="shard-3")
        self.watch = Watch(
            [1],
            find=lambda rank: None if self.beat is None else self.beat.to_json(),
            identities=lambda rank: who,
            patience=100,
            lost_after=10,
            clock=lambda: self.now,
        )

    def at(self, seconds: float, **changes: object) -> DistributedError | None:
        self.now = seconds
        if self.beat is not None:
            self.beat = replace(self.beat, **changes)  # type: ignore[arg-type]
        return self.watch.look(2)


def test_silence_of_another_machine_is_a_loss() -> None:
    scene = Scene()
    assert scene.at(0.5) is None
    assert scene.at(9) is None
    lost = scene.at(11)
    assert isinstance(lost, RankLostError)
    assert "rank 1 (process 1 on node7)" in str(lost)
    assert "which was at shard-3" in str(lost)


def test_one_that_beats_and_does_not_get_on_is_late_and_named_with_its_file() -> None:
    scene = Scene()
    assert not any(scene.at(second, number=second) for second in range(1, 100))
    late = scene.at(102, number=102)
    assert isinstance(late, RankLaggingError)
    assert "shard-3" in str(late)


def test_one_that_reads_is_waited_for_however_slow() -> None:
    scene = Scene()
    assert not any(scene.at(second, number=second, moved=second // 50) for second in range(1, 1000))


def test_one_that_never_began_is_late_when_patience_ends() -> None:
    scene = Scene(who=None)
    assert scene.at(99) is None
    late = scene.at(101)
    assert isinstance(late, RankLaggingError)
    assert "has not begun" in str(late)


def test_one_that_has_reached_the_step_may_be_silent() -> None:
    scene = Scene()
    assert scene.at(1, step=2) is None
    assert scene.at(500) is None


def test_a_process_of_this_machine_is_lost_when_it_ended_and_not_when_it_is_silent() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    begun = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    scene = Scene(replace(Identity.own(), pid=child.pid, begun=begun))
    assert scene.at(1) is None
    assert scene.at(60) is None
    child.kill()
    child.wait(timeout=60)
    lost = scene.at(61)
    assert isinstance(lost, RankLostError)
    assert "died during the load, at shard-3" in str(lost)
    assert child.stdin is not None
    child.stdin.close()


def test_a_number_that_another_process_has_by_now_is_no_life() -> None:
    scene = Scene(replace(Identity.own(), pid=os.getpid(), begun="0"))
    assert isinstance(scene.at(1), RankLostError)


def test_who_is_waited_for_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    with caplog.at_level(logging.WARNING, "weight_readers.distributed"):
        scene.at(1)
        scene.at(5, number=2)
    assert caplog.messages == ["waiting for rank 1 (process 1 on node7), which is reading shard-3"]
