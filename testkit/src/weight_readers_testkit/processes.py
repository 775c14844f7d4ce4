# SPDX-License-Identifier: Apache-2.0
"""Threads, processes, and a process state that is left alone."""

from __future__ import annotations

import os
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from weight_readers import Feature
from weight_readers_testkit import elsewhere as there
from weight_readers_testkit.subject import Subject
from weight_readers_testkit.tensors import Contents, contents, expected


class ProcessTests(Subject):
    def test_one_reader_serves_several_passes_at_once(self, tmp_path: Path) -> None:
        """`iter_weights`: keep the state of a pass in the generator, not in the reader."""
        reader, shards = self.make(), self.shards(tmp_path, 3, tensors=20)
        right = contents(reader.iter_weights(shards))
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: contents(reader.iter_weights(shards)), range(16)))
        assert all(right == result for result in results)
        pairs = list(zip(reader.iter_weights(shards), reader.iter_weights(shards), strict=True))
        assert right == contents(one for one, _ in pairs) == contents(two for _, two in pairs)

    def test_threads_read_for_it_only_where_that_is_declared(self, tmp_path: Path) -> None:
        """`Feature.CONCURRENT`: declare it where threads read."""
        reader = self.make()
        if Feature.CONCURRENT in reader.info.features:
            pytest.skip("concurrent is declared")
        path, _ = self.bulky(tmp_path)
        before = set(threading.enumerate())
        for name, _ in reader.iter_weights([path]):
            assert set(threading.enumerate()) - before == set(), f"threads at tensor {name!r}"

    def test_a_spawned_process_reads(self, tmp_path: Path, elsewhere: there.Elsewhere) -> None:
        """`weight_readers_create`: need nothing but the options; state of the parent is not there."""
        assert self._right() == elsewhere.run(there.read, self._case(tmp_path))

    def test_a_forked_child_reads_and_keeps_what_its_parent_read(
        self, tmp_path: Path, elsewhere: there.Elsewhere
    ) -> None:
        """`iter_weights`: threads and locks of the parent are not in the child; begin them in each pass."""
        case = self._case(tmp_path)
        try:
            elsewhere.run(there.read, case)
        except RuntimeError:
            pytest.skip("a spawned process does not read")
        assert elsewhere.run(there.fork_and_read, case) == (0, True)

    def test_a_thread_that_outlives_the_main_one_reads(self, tmp_path: Path, elsewhere: there.Elsewhere) -> None:
        """`iter_weights`: no ThreadPoolExecutor, which takes no work then: `weight_readers_files.threads.Pool`."""
        case = self._case(tmp_path)
        try:
            elsewhere.run(there.read, case)
        except RuntimeError:
            pytest.skip("a spawned process does not read")
        assert elsewhere.run(there.read_after_the_main_thread, case) == 0

    def test_the_state_of_the_process_is_left_alone(self, tmp_path: Path) -> None:
        """`iter_weights`: leave os.environ, the working directory, random states, torch's defaults and warning filters
        as they are."""
        shards = self.shards(tmp_path, 2)
        before = _state()
        list(self.make().iter_weights(shards))
        assert before == _state()

    def _case(self, folder: Path) -> there.Case:
        return self.case(self.shards(folder, 2))

    def _right(self) -> Contents:
        return expected({**self.shard(1), **self.shard(2)})


def _state() -> tuple[object, ...]:
    return (
        dict(os.environ),
        Path.cwd(),
        random.getstate(),
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        list(warnings.filters),
    )
