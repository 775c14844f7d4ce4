# SPDX-License-Identifier: Apache-2.0
"""Threads, processes, and a process state that is left alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from support.measure import output_of
from support.tensors import contents, read_all, write_shards

from weight_readers import ReaderInfo, WeightReader

if TYPE_CHECKING:
    from conftest import Choice


def test_eight_threads_share_one_reader(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3, tensors=40)
    expected = contents(reader.iter_weights(shards))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: contents(reader.iter_weights(shards)), range(16)))
    assert all(expected == result for result in results)


def test_threads_may_read_different_files(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 16)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda shard: list(contents(reader.iter_weights([shard]))), shards))
    assert [[f"s{n}.t0", f"s{n}.t1"] for n in range(1, 17)] == results


def test_two_passes_may_be_interleaved(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    expected = contents(reader.iter_weights(shards))
    pairs = list(zip(reader.iter_weights(shards), reader.iter_weights(shards), strict=True))
    assert expected == contents(one for one, _ in pairs) == contents(two for _, two in pairs)


FORK = """
import json, os, sys
import weight_readers
from support.tensors import bits
name, modes, paths = json.loads(sys.argv[1])
for options in modes:
    reader = weight_readers.select_weight_reader(requested=name, format="safetensors", strict=True, options=options)
    weights = reader.iter_weights(paths)
    kept = [next(weights)]
    expected = {key: bits(values) for key, values in reader.iter_weights(paths)}
    child = os.fork()
    if child == 0:
        again = {key: bits(values) for key, values in reader.iter_weights(paths)}
        same = again == expected and bits(kept[0][1]) == expected[kept[0][0]]
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    kept += list(weights)
    print(os.waitstatus_to_exitcode(status), {key: bits(values) for key, values in kept} == expected)
"""


def test_a_forked_child_reads_and_keeps_what_its_parent_read(
    info: ReaderInfo, modes: list[dict[str, Any]], tmp_path: Path
) -> None:
    shards = [str(shard) for shard in write_shards(tmp_path, 3)]
    assert ["0 True"] * len(modes) == output_of(FORK, json.dumps([info.name, modes, shards])).splitlines()


def test_a_spawned_process_reads(info: ReaderInfo, modes: list[dict[str, Any]], tmp_path: Path) -> None:
    shards = [str(shard) for shard in write_shards(tmp_path, 2)]
    expected = read_all(info.name, modes, shards)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert expected == pool.submit(read_all, info.name, modes, shards).result(180)


def test_the_state_of_the_process_is_left_alone(choice: Choice, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    before = _state()
    reader = choice.make()
    list(reader.iter_weights(shards, key_filter=lambda name: name != "s1.t0"))
    assert before == _state()


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
