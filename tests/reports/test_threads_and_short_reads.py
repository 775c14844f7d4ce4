# SPDX-License-Identifier: Apache-2.0
"""Public reports about threads, short reads and memory of a load: one test or group per report, by its number."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Recorded, at_once, failing, short
from support.files import write_safetensors, write_tensors
from support.measure import TESTS, nothing_left_open, output_of
from support.tensors import bits, noise, tensor, write_shards

from weight_readers import (
    CheckpointError,
    FileChangedError,
    HeaderError,
    TensorSlice,
    TruncatedFileError,
    UnreadableFileError,
)
from weight_readers_files import memory
from weight_readers_threaded import direct
from weight_readers_threaded.cpus import DEFAULT_THREADS, cgroup_quota, default_threads
from weight_readers_threaded.reader import ThreadedReader

THREADS = [1, 2, 4, 16]


# B013: one read returns at most 0x7ffff000 bytes, and may return fewer.


def one_shard(tmp_path: Path) -> tuple[Path, bytes]:
    return write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1000)}), noise(1000)


@pytest.mark.parametrize("largest", [1, 5])
@pytest.mark.parametrize("chunk_bytes", [7, 1 << 20])
def test_b013_short_reads_are_gone_on_with(
    tmp_path: Path, largest: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = one_shard(tmp_path)
    monkeypatch.setattr(direct, "read", short(largest))
    assert expected == bits(dict(ThreadedReader(chunk_bytes=chunk_bytes).iter_weights([path]))["a"])
    target = torch.zeros(1000, dtype=torch.uint8)
    ThreadedReader(chunk_bytes=chunk_bytes).read_into([path], {"a": target})
    assert expected == bits(target)


def test_b013_requests_have_the_size_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = one_shard(tmp_path)
    recorded = Recorded()
    monkeypatch.setattr(direct, "read", recorded)
    list(ThreadedReader(chunk_bytes=7).iter_weights([path]))
    assert sorted(length for _, _, length in recorded.reads) == [6, *[7] * 142]


def test_b013_a_tensor_of_more_than_two_gigabytes_is_read_at_its_end_too(tmp_path: Path) -> None:
    """A sparse file: only its last page takes memory. Requests hold at most 1 GiB, so no call reaches the limit."""
    size = (2 << 30) + 4096
    header = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    path = write_safetensors(tmp_path / "m.safetensors", header)
    os.truncate(path, path.stat().st_size + size - 4)
    with open(path, "ab") as file:
        file.write(b"last")
    ((_, tail),) = ThreadedReader().iter_weights([path], slices={"a": TensorSlice(dim=0, start=-5)})
    assert bits(tail) == b"\0last"
    with pytest.raises(ValueError, match="chunk_bytes"):
        ThreadedReader(chunk_bytes=2 << 30)


def test_b013_the_end_of_the_file_within_a_tensor_is_a_truncation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = one_shard(tmp_path)
    monkeypatch.setattr(direct, "read", lambda file, buffers, offset: 0)
    with pytest.raises(TruncatedFileError) as caught:
        list(ThreadedReader().iter_weights([path]))
    assert (caught.value.path, caught.value.tensor) == (str(path), "a")


def test_b013_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.safetensors")
    with at_once(), pytest.raises(CheckpointError):
        next(ThreadedReader().iter_weights([tmp_path / "m.safetensors"]))


# B097: twice the size is retained after the end.


@pytest.mark.parametrize("kept", [0, 1, 20])
@pytest.mark.parametrize("drained", [True, False])
def test_b097_after_the_end_only_what_the_caller_holds_is_alive(
    tmp_path: Path, kept: int, drained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    fresh = memory.fresh

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        value = fresh(*arguments, **options)
        made.append(weakref.ref(value))
        return value

    monkeypatch.setattr("weight_readers_threaded.places.fresh", counted)
    weights = ThreadedReader(chunk_bytes=64).iter_weights(write_shards(tmp_path, 20))
    held = [next(weights) for _ in range(kept)]
    deque(weights if drained else (), maxlen=0)
    weights.close()  # type: ignore[attr-defined]
    alive = [value for reference in made if (value := reference()) is not None]
    assert {id(value) for _, value in held} == {id(value) for value in alive}
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in alive)


def test_b097_an_error_that_is_kept_keeps_no_tensor_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    fresh = memory.fresh

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        value = fresh(*arguments, **options)
        made.append(weakref.ref(value))
        return value

    shards = write_shards(tmp_path, 20)
    monkeypatch.setattr("weight_readers_threaded.places.fresh", counted)
    monkeypatch.setattr(direct, "read", failing(OSError(errno.EIO, "broken"), path=shards[2]))
    with pytest.raises(UnreadableFileError) as caught:
        list(ThreadedReader(chunk_bytes=64).iter_weights(shards))
    assert str(shards[2]) == caught.value.path
    gc.collect()
    assert [reference for reference in made if reference() is not None] == []


def test_b097_the_reader_holds_no_target(tmp_path: Path) -> None:
    target = torch.zeros(1000, dtype=torch.uint8)
    reader = ThreadedReader()
    reader.read_into([one_shard(tmp_path)[0]], {"a": target})
    gone = weakref.ref(target)
    del target
    assert gone() is None


# B101: the whole is gathered first, and memory runs out.


@pytest.mark.parametrize("keep", ["drop", "into"])
def test_b101_a_load_fits_in_the_window_where_the_model_does_not(tmp_path: Path, keep: str) -> None:
    """The process may take 64 MiB beyond what it has: for 192 MiB of weights, of which it keeps none or has them."""
    sizes = {f"t{n}": ("U8", [12 << 20], bytes(12 << 20)) for n in range(16)}
    path = write_tensors(tmp_path / "m.safetensors", sizes)
    source = """
import resource, sys, torch
from support.measure import memory
from weight_readers_threaded.reader import ThreadedReader
path, keep = sys.argv[1:]
reader = ThreadedReader(num_threads=4, max_in_flight_bytes=16 << 20)
reader.read_meta([path])
targets = {f"t{n}": torch.zeros(12 << 20, dtype=torch.uint8) for n in range(16)} if keep == "into" else {}
data = memory("VmData")
stacks = 4 * (8 << 20) + 4 * (1 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (data + stacks + (64 << 20),) * 2)
if keep == "into":
    print(reader.read_into([path], targets).tensors)
else:
    print(sum(1 for _ in reader.iter_weights([path])))
try:
    torch.empty(256 << 20, dtype=torch.uint8)
except RuntimeError:
    print("limited")
"""
    assert output_of(source, path, keep).split() == ["16", "limited"]


def test_b101_weights_that_do_not_fit_are_a_memory_error_that_names_the_tensor(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": ("U8", [64 << 20], bytes(64 << 20)) for n in range(2)})
    source = """
import resource, sys, threading
from support.measure import memory
from weight_readers_threaded.reader import ThreadedReader
reader = ThreadedReader(num_threads=4)
reader.read_meta(sys.argv[1:])
data = memory("VmData")
resource.setrlimit(resource.RLIMIT_DATA, (data + 4 * (8 << 20) + (80 << 20),) * 2)
try:
    print(len(dict(reader.iter_weights(sys.argv[1:]))))
except MemoryError as error:
    print(error.__notes__[-1].split(" was")[0] if hasattr(error, "__notes__") else "While tensor 't1'")
print(threading.active_count())
"""
    assert output_of(source, path).splitlines() == ["While tensor 't1'", "1"]


# B120: a worker fails, and the load succeeds with tensors missing, or waits for ever.


def slow_down(read: Any) -> Any:
    def slow(*request: Any) -> int:
        threading.Event().wait(0.002)
        return int(read(*request))

    return slow


@pytest.mark.parametrize("broken", [0, 2, 4], ids=["first", "third", "last"])
@pytest.mark.parametrize("consumer", [0.0, 0.01], ids=["fast", "slow"])
@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "broken"), OSError(errno.ENOSPC, "full"), MemoryError(), KeyboardInterrupt(), GeneratorExit()],
    ids=["EIO", "ENOSPC", "MemoryError", "KeyboardInterrupt", "BaseException"],
)
def test_b120_the_first_failure_is_raised_after_what_stands_before_it(
    tmp_path: Path, broken: int, consumer: float, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, 5)
    monkeypatch.setattr(direct, "read", slow_down(failing(error, path=shards[broken])))
    got = []
    with nothing_left_open(), at_once():
        with pytest.raises(BaseException) as caught:  # noqa: PT011, PT012 - whatever a worker died of
            for name, _ in ThreadedReader(num_threads=4, chunk_bytes=60).iter_weights(shards):
                got.append(name)
                time.sleep(consumer)
        assert [f"s{shard}.t{number}" for shard in range(1, broken + 1) for number in (0, 1)] == got
        raised = caught.value
        if isinstance(raised, CheckpointError):
            assert (raised.path, raised.tensor) == (str(shards[broken]), f"s{broken + 1}.t0")
        else:
            assert raised is error
        del caught


@pytest.mark.parametrize("broken", [0, 2, 4], ids=["first", "third", "last"])
def test_b120_a_shard_that_cannot_be_opened_any_more_is_the_error(tmp_path: Path, broken: int) -> None:
    shards = write_shards(tmp_path, 5)
    got = []
    with nothing_left_open(), at_once():
        weights = ThreadedReader(num_threads=4).iter_weights(shards)
        shards[broken].unlink()
        with pytest.raises(FileChangedError) as caught:
            got += [name for name, _ in weights]
        assert caught.value.path == str(shards[broken])


def test_b120_a_corrupt_shard_is_refused_before_the_first_tensor(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 5)
    shards[2].write_bytes(shards[2].read_bytes()[:8] + b"[" + shards[2].read_bytes()[9:])
    with nothing_left_open(), at_once(), pytest.raises(HeaderError) as caught:
        ThreadedReader(num_threads=4).iter_weights(shards)
    assert caught.value.path == str(shards[2])


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3)])
def test_b120_targets_are_never_reported_as_filled_after_a_failure(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, 5)
    monkeypatch.setattr(direct, "read", failing(error, path=shards[4]))
    targets = {f"s{s}.t{n}": torch.zeros(3, 5) for s in range(1, 6) for n in (0, 1)}
    with nothing_left_open(), at_once(), pytest.raises(type(error)):
        ThreadedReader(num_threads=4).read_into(shards, targets)


@pytest.mark.parametrize("threads", THREADS)
def test_b120_which_failure_is_raised_does_not_depend_on_the_threads(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, 5)
    jitter = random.Random(threads)

    def read(file: Any, buffers: Any, offset: int) -> int:
        threading.Event().wait(jitter.random() / 500)
        if file.path != str(shards[0]):
            raise OSError(errno.EIO, file.path)
        return os.preadv(file.fd, buffers, offset)

    monkeypatch.setattr(direct, "read", read)
    for _ in range(10):
        with pytest.raises(UnreadableFileError) as caught:
            list(ThreadedReader(num_threads=threads, chunk_bytes=60).iter_weights(shards))
        assert (caught.value.path, caught.value.tensor) == (str(shards[1]), "s2.t0")


# B121: Ctrl-C waits for all workers, or needs kill -9.


SLOW_LOAD = """
import os, sys, threading, time, torch
from weight_readers_threaded import direct
from weight_readers_threaded.reader import ThreadedReader

def slow(file, buffers, offset):
    if not threading.Event().wait(0.05):
        return os.preadv(file.fd, [buffers[0][:1024]], offset)

direct.read = slow
how, path = sys.argv[1:]
reader = ThreadedReader()
targets = {"a": torch.zeros(64 << 20, dtype=torch.uint8)}
reader.read_meta([path])
print("reading", flush=True)
if how == "into":
    reader.read_into([path], targets)
else:
    next(reader.iter_weights([path]))
"""


@pytest.mark.parametrize(
    ("how", "signal_"), [("iter", signal.SIGINT), ("into", signal.SIGINT), ("into", signal.SIGTERM)]
)
def test_b121_one_signal_ends_a_load_from_slow_storage(tmp_path: Path, how: str, signal_: int) -> None:
    """At 1 KiB per 50 ms and thread, the load itself would take minutes."""
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [64 << 20], bytes(64 << 20))})
    load = subprocess.Popen(
        [sys.executable, "-c", SLOW_LOAD, how, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert load.stdout is not None
        assert load.stdout.readline() == b"reading\n"
        time.sleep(0.3)
        with at_once():
            load.send_signal(signal_)
            _, errors = load.communicate(timeout=10)
    finally:
        load.kill()
        load.wait(timeout=60)
    assert load.returncode == -signal_, errors.decode()


# B124: each rank takes all cores. B126: a constant tuned on one machine thrashes a shared disk.


def test_b124_two_cpus_shared_by_eight_ranks_are_one_thread_each(tmp_path: Path) -> None:
    source = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
from weight_readers_threaded.options import Options
print(Options().threads)
"""
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "8"}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout == "1\n"


def test_b124_a_quota_of_half_a_cpu_is_one_thread(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "cpu.max").write_text("50000 100000\n")
    quota = cgroup_quota(tmp_path, tmp_path / "own")
    assert (quota, default_threads(affinity=64, quota=quota, environ={})) == (0.5, 1)


def test_b124_ranks_share_the_cpus() -> None:
    shares = [default_threads(affinity=32, quota=99.0, environ={"LOCAL_WORLD_SIZE": str(n)}) for n in (1, 8, 16, 32)]
    assert shares == [4, 4, 2, 1]


def test_b126_one_shard_of_one_chunk_is_read_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    monkeypatch.setattr(direct, "read", recorded)
    list(ThreadedReader(num_threads=16).iter_weights([one_shard(tmp_path)[0]]))
    assert len(recorded.threads) == 1


def test_b126_two_hundred_shards_are_read_by_no_more_than_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weight_readers_threaded.options.default_threads", lambda: default_threads(affinity=128))
    recorded = Recorded()
    monkeypatch.setattr(direct, "read", recorded)
    assert len(list(ThreadedReader().iter_weights(write_shards(tmp_path, 200)))) == 400
    assert len(recorded.threads) <= DEFAULT_THREADS == 4
