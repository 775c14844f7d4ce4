# SPDX-License-Identifier: Apache-2.0
"""Local files: order, memory, faults, and a process that is left as it was."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from support.files import write_tensors
from support.measure import nothing_left_open, output_of, run_child
from support.tensors import bits, noise, tensor, write_shards, write_sparse

from weight_readers import FileChangedError, TruncatedFileError, UnreadableFileError
from weight_readers_runai.reader import StreamerReader

MIB = 1 << 20


@pytest.fixture
def large(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """Tensors of many sizes, most of them unaligned, over more than two blocks of 8 MiB."""
    sizes = [3, 1, 300_000, 5 * MIB + 1, 70, 0, 9 * MIB, 100, 256 * 1024, 2 * MIB]
    written = {f"t{number}": noise(size, number) for number, size in enumerate(sizes)}
    path = write_tensors(
        tmp_path / "m.safetensors", {name: ("U8", [len(data)], data) for name, data in written.items()}
    )
    return path, written


@pytest.mark.parametrize("direct_io", ["off", "auto", "on"])
@pytest.mark.parametrize("memory_limit", [9 * MIB, None])
def test_every_byte_is_right_whichever_way_it_is_read(
    large: tuple[Path, dict[str, bytes]], direct_io: str, memory_limit: int | None
) -> None:
    path, written = large
    reader = StreamerReader(direct_io=direct_io, memory_limit=memory_limit)
    assert written == {name: bits(values) for name, values in reader.iter_weights([path])}


def test_the_order_is_the_same_in_a_hundred_runs(tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(64)]
    path = write_tensors(tmp_path / "m.safetensors", {name: tensor("U8", 40_000, seed=name) for name in names})
    reader = StreamerReader()
    assert {tuple(names)} == {tuple(name for name, _ in reader.iter_weights([path])) for _ in range(100)}


def test_in_order_of_completion_every_tensor_comes_once(large: tuple[Path, dict[str, bytes]]) -> None:
    path, written = large
    got = list(StreamerReader(order="completion", memory_limit=9 * MIB).iter_weights([path]))
    assert written == {name: bits(values) for name, values in got}
    assert len(written) == len(got)


def test_tensors_do_not_share_memory(large: tuple[Path, dict[str, bytes]]) -> None:
    path, _ = large
    kept = dict(StreamerReader(direct_io="off").iter_weights([path]))
    held = [values.untyped_storage().nbytes() for values in kept.values()]
    assert held == [values.nbytes for values in kept.values()]
    assert len(kept) - 1 == len({values.data_ptr() for values in kept.values() if values.numel()})


def test_tensors_lie_in_host_memory_whatever_the_default_device(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("F32", 3)})
    with torch.device("meta"):
        ((_, values),) = StreamerReader().iter_weights([path])
    assert (values.device.type, bits(values)) == ("cpu", tensor("F32", 3)[2])


def test_a_file_that_is_cut_between_header_and_tensors_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_sparse(path, {"a": MIB, "b": 40 * MIB})
    weights = StreamerReader(memory_limit=40 * MIB).iter_weights([path])
    os.truncate(path, 2 * MIB)
    with nothing_left_open(), pytest.raises((FileChangedError, TruncatedFileError)) as caught:
        list(weights)
    assert str(path) == caught.value.path


def test_a_file_that_is_rewritten_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 10), "b": tensor("U8", 10)})
    weights = StreamerReader().iter_weights([path])
    assert next(weights)[0] == "a"
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileChangedError) as caught:
        next(weights)
    assert (str(path), "b") == (caught.value.path, caught.value.tensor)


def test_a_file_that_is_removed_meanwhile_is_an_error(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    weights = StreamerReader().iter_weights(shards)
    shards[0].unlink()
    with pytest.raises((FileChangedError, FileNotFoundError)) as caught:
        next(weights)
    assert str(shards[0]) in str(caught.value)


def test_a_path_that_is_no_utf8_is_refused_by_name(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors")
    try:
        write_tensors(Path(path), {"a": tensor("U8", 1)})
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    with pytest.raises(UnreadableFileError, match="refuses to read") as caught:
        list(StreamerReader().iter_weights([path]))
    assert path == caught.value.path


def test_variables_of_the_library_are_set_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_FS_STRATEGY", "sync_buffered")
    monkeypatch.delenv("RUNAI_STREAMER_CONCURRENCY", raising=False)
    before = dict(os.environ)
    weights = StreamerReader(concurrency=2).iter_weights(write_shards(tmp_path, 2))
    next(weights)
    assert before == dict(os.environ)
    weights.close()  # type: ignore[attr-defined]
    assert before == dict(os.environ)


def test_an_interrupt_is_heard_while_nothing_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weight_readers_runai.streamer import Streamer

    streamer = Streamer({})
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            streamer.next(20)
        assert time.monotonic() - began < 15
    finally:
        streamer.close()


PEAK = """
import sys
import torch
from pathlib import Path
from support.measure import memory
from weight_readers_runai.reader import StreamerReader
list(StreamerReader().iter_weights([sys.argv[1]], key_filter="t0".__eq__))
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
for _, values in StreamerReader(direct_io=sys.argv[2]).iter_weights([sys.argv[1]]):
    del values
print((memory("VmHWM") - before) >> 20)
"""


@pytest.mark.parametrize("direct_io", ["off", "on"])
def test_memory_beyond_what_is_kept_is_bounded_by_default(tmp_path: Path, direct_io: str) -> None:
    path = tmp_path / "m.safetensors"
    write_sparse(path, {f"t{n}": 8 * MIB for n in range(64)})
    assert int(output_of(PEAK, path, direct_io)) <= 256


LEAVE = """
import sys
from weight_readers_runai.reader import StreamerReader
weights = StreamerReader().iter_weights([sys.argv[1]])
next(weights)
print("leaving", flush=True)
"""


def test_a_process_may_end_in_the_middle_of_a_load(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_sparse(path, {f"t{n}": 8 * MIB for n in range(32)})
    done = run_child(LEAVE, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
