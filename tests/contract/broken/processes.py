# SPDX-License-Identifier: Apache-2.0
"""Readers that mind other passes, threads or processes, or change the state of theirs."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from contract.broken.bases import Changed, Pairs
from contract.broken.registry import breaks


@breaks("one_reader_serves_several_passes_at_once")
class _OneAtATime(Changed):
    turn = 0

    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        self.turn += 1
        mine = self.turn
        for pair in sound:
            if mine != self.turn:
                raise RuntimeError("another pass began")
            yield pair


@breaks("threads_read_for_it_only_where_that_is_declared")
class _HelpedUnseen(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        done = threading.Event()
        helper = threading.Thread(target=done.wait)
        helper.start()
        try:
            yield from sound
        finally:
            done.set()
            helper.join()


@breaks("a_spawned_process_reads")
class _NeedsItsParent(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if len(files) == 2 and multiprocessing.parent_process() is not None:
            raise RuntimeError("the state of the parent is not here")
        yield from sound


@breaks("a_forked_child_reads_and_keeps_what_its_parent_read")
class _KnowsItsProcess(Changed):
    def __init__(self) -> None:
        super().__init__()
        self.process = os.getpid()

    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        if self.process != os.getpid():
            raise RuntimeError("made in another process")
        yield from sound


@breaks("a_thread_that_outlives_the_main_one_reads")
class _PoolOfPython(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(len, files).result(timeout=600)
        yield from sound


@breaks("the_state_of_the_process_is_left_alone")
class _Remembers(Changed):
    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        os.environ["BROKEN_READER_PASSES"] = str(int(os.environ.get("BROKEN_READER_PASSES", "0")) + 1)
        yield from sound
