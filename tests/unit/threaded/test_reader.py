# SPDX-License-Identifier: Apache-2.0
"""The reader as a whole: values, order, parts, targets, devices, failures and what is left behind."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from safetensors import safe_open
from support.faults import SECONDS, Recorded, at_once, failing, short
from support.files import write_tensors
from support.measure import nothing_left_open, output_of
from support.tensors import BITS, bits, noise, tensor, write_shards

from weight_readers import CheckpointError, FileChangedError, ReadStats, TensorSlice, UnreadableFileError
from weight_readers_safetensors import DTYPES
from weight_readers_threaded import direct, loads
from weight_readers_threaded.reader import ThreadedReader
from weight_readers_threaded.staging import BLOCK_BYTES, HostStreams, Ring

THREADS = [1, 2, 4, 16]
TINY = {"num_threads": 4, "chunk_bytes": 7, "max_in_flight_bytes": 64}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    with nothing_left_open(), at_once():
        yield


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    """Two shards of every dtype, with scalars and empty tensors anywhere, in an order given backwards."""
    shards = []
    for shard in (1, 2):
        named = {f"{shard}.{dtype}": tensor(dtype, 4, 6, seed=(shard, dtype)) for dtype in BITS}
        named |= {f"{shard}.scalar": tensor("F32", seed=shard), f"{shard}.empty": ("F16", [3, 0], b"")}
        items = list(named.items())
        random.Random(shard).shuffle(items)
        shards.append(write_tensors(tmp_path / f"model-{shard}.safetensors", dict(items)))
    return shards[::-1]


def by_library(paths: list[Path]) -> dict[str, torch.Tensor]:
    found = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    return found


def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Of any dtype: torch cannot fill those of four bits."""
    return torch.zeros((*shape, dtype.itemsize), dtype=torch.uint8).view(dtype).view(shape)


@pytest.mark.parametrize("options", [{}, TINY], ids=["default", "tiny"])
def test_every_dtype_is_read_into_targets(mixed: list[Path], options: dict[str, Any]) -> None:
    expected = by_library(mixed)
    targets = {name: zeros(value.dtype, *value.shape) for name, value in expected.items()}
    stats = ThreadedReader(**options).read_into(mixed, targets)
    assert {n: bits(t) for n, t in expected.items()} == {n: bits(t) for n, t in targets.items()}
    nbytes = sum(t.nbytes for t in expected.values())
    assert ReadStats(tensors=len(expected), bytes_wanted=nbytes, bytes_read=nbytes) == stats


def test_the_table_of_dtypes_is_that_of_the_format() -> None:
    assert set(BITS) == {name for name, dtype in DTYPES.items() if hasattr(torch, dtype.torch_name)}


def strided(value: torch.Tensor, how: str) -> torch.Tensor:
    """A target of the shape of ``value`` (4, 6), laid out in memory as ``how`` says."""
    rows, columns = value.shape
    layouts: dict[str, Callable[[], torch.Tensor]] = {
        "rows": lambda: zeros(value.dtype, rows + 2, columns)[1 : rows + 1],
        "columns": lambda: zeros(value.dtype, rows, columns + 3)[:, 2 : columns + 2],
        "transposed": lambda: zeros(value.dtype, columns, rows).t(),
        "every second": lambda: zeros(value.dtype, 2 * rows, 2 * columns)[::2, ::2],
    }
    return layouts[how]()


@pytest.mark.parametrize("how", ["rows", "columns", "transposed", "every second"])
@pytest.mark.parametrize("options", [{}, TINY], ids=["default", "tiny"])
def test_targets_of_any_strides_are_filled_and_nothing_beside_them(
    mixed: list[Path], how: str, options: dict[str, Any]
) -> None:
    expected = {n: t for n, t in by_library(mixed).items() if t.dim() == 2 and t.nbytes and "F4" not in n}
    targets = {name: strided(value, how) for name, value in expected.items()}
    ThreadedReader(**options).read_into(mixed, targets)
    for name, value in expected.items():
        assert bits(value) == bits(targets[name].contiguous().clone()), name
        memory = torch.empty(0, dtype=torch.uint8).set_(targets[name].untyped_storage())  # type: ignore[call-overload]
        outside = memory.count_nonzero() - torch.frombuffer(bytearray(bits(value)), dtype=torch.uint8).count_nonzero()
        assert outside == 0


def test_a_conjugated_view_gets_the_values_rather_than_the_bytes(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("C64", [1], torch.tensor([1 + 2j]).numpy().tobytes())})
    target = torch.zeros(1, dtype=torch.complex64)
    ThreadedReader().read_into([path], {"a": target.conj()})
    assert target.tolist() == [1 - 2j]


def test_parameters_that_need_gradients_and_inference_tensors_are_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "BLOCK_BYTES", 8)
    path = write_tensors(tmp_path / "m.safetensors", {n: tensor("I32", 2, 3, seed=n) for n in "abc"})
    expected = by_library([path])
    parameter = torch.nn.Parameter(torch.zeros(3, 2).t())
    with torch.inference_mode():
        inference = torch.zeros(3, 2, dtype=torch.int32).t()
    path_f = write_tensors(tmp_path / "f.safetensors", {"p": tensor("F32", 2, 3)})
    ThreadedReader().read_into([path], {"a": inference})
    ThreadedReader().read_into([path_f], {"p": parameter})
    assert expected["a"].equal(inference)
    assert bits(by_library([path_f])["p"]) == bits(parameter.detach())


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("options", [{}, TINY], ids=["default", "tiny"])
def test_slices_of_any_dimension_read_exactly_their_bytes(
    mixed: list[Path], dim: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {n: t for n, t in by_library(mixed).items() if t.dim() == 2 and t.nbytes}
    span = {name: (2, 4) if "F4" in name else (1, 3) for name in whole}
    slices = {name: TensorSlice(dim=dim, start=b, stop=e) for name, (b, e) in span.items()}

    def expected(name: str) -> bytes:
        value = whole[name]
        begin, end = span[name]
        if name.endswith("F4") and dim != 0:
            begin, end = begin // 2, end // 2
        return bits(value.view(torch.uint8).view(*value.shape, -1).narrow(dim % 2, begin, end - begin).contiguous())

    recorded = Recorded(direct.read)
    monkeypatch.setattr(direct, "read", recorded)
    got = dict(ThreadedReader(**options).iter_weights(mixed, key_filter=whole.__contains__, slices=slices))
    assert {name: expected(name) for name in whole} == {name: bits(value) for name, value in got.items()}
    nbytes = sum(value.nbytes for value in got.values())
    assert nbytes == recorded.bytes_asked()
    targets = {name: torch.empty_like(value) for name, value in got.items()}
    ThreadedReader(**options).read_into(mixed, targets, slices=slices)
    assert {name: bits(value) for name, value in got.items()} == {name: bits(value) for name, value in targets.items()}
    assert 2 * nbytes == recorded.bytes_asked()


def test_a_filter_reads_no_byte_of_what_it_leaves_out(mixed: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(direct.read)
    monkeypatch.setattr(direct, "read", recorded)
    got = dict(ThreadedReader().iter_weights(mixed, key_filter=lambda name: name in ("1.F32", "1.U8")))
    assert (
        sorted({name for name, _, _ in recorded.reads}),
        recorded.bytes_asked(),
    ) == (["model-1.safetensors"], 24 * 5)
    assert len(got) == 2


@pytest.mark.parametrize("threads", THREADS)
def test_the_order_is_that_of_the_files_and_offsets_whatever_the_threads_do(
    mixed: list[Path], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jitter = random.Random(threads)

    def late(*args: Any) -> int:
        threading.Event().wait(jitter.random() / 500)
        return direct_read(*args)

    direct_read = direct.read
    monkeypatch.setattr(direct, "read", late)
    got = [name for name, _ in ThreadedReader(num_threads=threads, chunk_bytes=64).iter_weights(mixed)]
    meta = ThreadedReader().read_meta(mixed)
    assert sorted(meta) == sorted(got)
    places = [(meta[name].file, meta[name].offset, meta[name].nbytes) for name in got]
    assert sorted(places) == places


def test_only_tensors_without_elements_need_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("F32", [0], b""), "b": ("BF16", [2, 0], b"")})
    monkeypatch.setattr(threading.Thread, "start", lambda *args: pytest.fail("a thread was started"))
    monkeypatch.setattr("weight_readers_safetensors.shards.Pool", _Serial)
    got = {name: tuple(value.shape) for name, value in ThreadedReader(num_threads=4).iter_weights([path])}
    assert got == {"a": (0,), "b": (2, 0)}
    assert (
        ThreadedReader().read_into([path], {"a": torch.empty(0), "b": torch.empty(2, 0, dtype=torch.bfloat16)}).tensors
        == 2
    )
    assert ReadStats() == ThreadedReader().read_into([path], {})


class _Serial:
    def __init__(self, *args: Any, **keywords: Any) -> None: ...

    def __enter__(self) -> _Serial:
        return self

    def __exit__(self, *args: object) -> None: ...

    map = staticmethod(map)


def test_twenty_thousand_tensors(tmp_path: Path) -> None:
    path = write_tensors(
        tmp_path / "m.safetensors", {f"t{n}": ("I32", [1], n.to_bytes(4, "little")) for n in range(20_000)}
    )
    got = [(name, int(value)) for name, value in ThreadedReader(max_in_flight_bytes=1000).iter_weights([path])]
    assert [(f"t{n}", n) for n in range(20_000)] == got
    targets = {f"t{n}": torch.zeros(1, dtype=torch.int32) for n in range(20_000)}
    ThreadedReader().read_into([path], targets)
    assert list(range(20_000)) == [int(target) for target in targets.values()]


@pytest.mark.parametrize("threads", THREADS)
def test_a_tail_and_the_tensor_after_it_do_not_wait_for_each_other(tmp_path: Path, threads: int) -> None:
    """The last bytes of the first would share a request with the second, which has no room before the first is gone."""
    path = write_tensors(tmp_path / "m.safetensors", {n: tensor("U8", 105, seed=n) for n in "abcdef"})
    reader = ThreadedReader(num_threads=threads, chunk_bytes=100, max_in_flight_bytes=110)
    assert list("abcdef") == [name for name, _ in reader.iter_weights([path])]


def test_a_tensor_larger_than_the_window_is_read(tmp_path: Path) -> None:
    path = write_tensors(
        tmp_path / "m.safetensors", {n: tensor("U8", size, seed=n) for n, size in [("a", 5), ("b", 900), ("c", 5)]}
    )
    got = dict(ThreadedReader(num_threads=4, chunk_bytes=16, max_in_flight_bytes=20).iter_weights([path]))
    assert {n: bits(t) for n, t in by_library([path]).items()} == {n: bits(t) for n, t in got.items()}


def test_staging_for_strided_targets_is_one_ring_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(HostStreams):
        def memory(self, nbytes: int) -> torch.Tensor:
            asked.append(nbytes)
            return super().memory(nbytes)

    monkeypatch.setattr(loads, "ring_for", lambda device: Ring(Counted()))
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": tensor("U8", 3000, 1000, seed=n) for n in range(20)})
    targets = {f"t{n}": torch.zeros(1000, 3000, dtype=torch.uint8).t() for n in range(20)}
    ThreadedReader(chunk_bytes=1 << 30).read_into([path], targets)
    assert asked == [32 << 20]
    assert {n: bits(t) for n, t in by_library([path]).items()} == {n: bits(t) for n, t in targets.items()}


class Late(HostStreams):
    """Copies that are made only when somebody waits for them, as a busy device would."""

    def __init__(self) -> None:
        self.due: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        self.due.append((source, target))
        return len(self.due)

    def wait(self, event: Any) -> None:
        while self.due:
            source, target = self.due.pop(0)
            target.copy_(source)

    def join(self) -> None:
        self.wait(None)


@pytest.mark.parametrize("options", [{}, TINY], ids=["default", "tiny"])
def test_a_device_gets_every_byte_through_copies_that_end_late(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [10, BLOCK_BYTES + 5, 1, 0, 3 * BLOCK_BYTES, *[1000] * 50] if not options else [10, 1, 0, 300, *[9] * 50]
    path = write_tensors(
        tmp_path / "m.safetensors", {f"t{n}": tensor("U8", size, seed=n) for n, size in enumerate(sizes)}
    )
    ring = Ring(Late())

    def on_device(plans: Any, device: torch.device, **options: Any) -> list[loads.FreshOnDevice]:
        return [loads.FreshOnDevice(p.path, w, torch.device("cpu"), ring) for p in plans for w in p.wanted]

    monkeypatch.setattr("weight_readers_threaded.reader.fresh_loads", on_device)
    monkeypatch.setattr("weight_readers_threaded.reader.placement", torch.device)
    expected = by_library([path])
    for name, value in ThreadedReader(**options).iter_weights([path], device="meta"):
        assert expected[name].equal(value), name


def test_another_device_without_streams_is_reached_by_copies(
    mixed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # meta, which callers are refused, stands for a device that this machine lacks.
    monkeypatch.setattr("weight_readers_threaded.reader.placement", torch.device)
    expected = {name: ("meta", t.dtype, t.shape) for name, t in by_library(mixed).items()}
    got = ThreadedReader().iter_weights(mixed, device="meta")
    assert expected == {name: (t.device.type, t.dtype, t.shape) for name, t in got}


def test_tensors_are_in_host_memory_whatever_the_default_device(mixed: list[Path]) -> None:
    with torch.device("meta"):
        got = dict(ThreadedReader().iter_weights(mixed))
    assert {"cpu"} == {value.device.type for value in got.values()}


@pytest.mark.parametrize("threads", [1, 4])
def test_progress_of_reading_into_targets_tells_of_bytes_within_a_tensor(tmp_path: Path, threads: int) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1000), "b": tensor("U8", 10)})
    calls: list[ReadStats] = []
    targets = {"a": torch.zeros(1000, dtype=torch.uint8), "b": torch.zeros(10, dtype=torch.uint8)}
    reader = ThreadedReader(num_threads=threads, chunk_bytes=10)
    stats = reader.read_into([path], targets, on_progress=calls.append)
    assert stats == calls[-1] == ReadStats(tensors=2, bytes_wanted=1010, bytes_read=1010)
    read = [each.bytes_read for each in calls]
    assert sorted(read) == read
    assert {1010} == {each.bytes_wanted for each in calls}


def test_progress_is_told_on_the_way_however_fast_the_bytes_come(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(1000)]
    path = write_tensors(tmp_path / "m.safetensors", {name: tensor("U8", 1000) for name in names})
    calls: list[ReadStats] = []
    targets = {name: torch.zeros(1000, dtype=torch.uint8) for name in names}
    ThreadedReader(chunk_bytes=1000).read_into([path], targets, on_progress=calls.append)
    assert calls[0].bytes_read < 1_000_000 == calls[-1].bytes_read


def test_an_error_of_the_progress_callback_is_the_callers(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def refuse(stats: ReadStats) -> None:
        raise Enough

    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1000)})
    with pytest.raises(Enough):
        ThreadedReader().read_into([path], {"a": torch.zeros(1000, dtype=torch.uint8)}, on_progress=refuse)
    with pytest.raises(Enough):
        next(ThreadedReader().iter_weights([path], on_progress=refuse))


@pytest.mark.parametrize("taken", [0, 1, 3, 20])
@pytest.mark.parametrize("read", [direct.read, short()], ids=["whole", "short"])
def test_a_consumer_that_stops_early_leaves_nothing(
    tmp_path: Path, taken: int, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "read", read)
    weights = ThreadedReader(**TINY).iter_weights(write_shards(tmp_path, 10))
    for _ in range(taken):
        next(weights)
    weights.close()  # type: ignore[attr-defined]


def test_a_generator_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    weights = ThreadedReader(**TINY).iter_weights(write_shards(tmp_path, 10))
    next(weights)
    del weights
    gc.collect()


def test_a_tensor_belongs_to_the_consumer_also_while_the_generator_rests(tmp_path: Path) -> None:
    weights = ThreadedReader().iter_weights(write_shards(tmp_path, 3))
    _, first = next(weights)
    gone = weakref.ref(first)
    del first
    assert gone() is None
    weights.close()  # type: ignore[attr-defined]


# Files that change between the header and the bytes.


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def removed(path: Path) -> None:
    path.unlink()


def renamed_over(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


def turned_into_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [cut, grown, rewritten, removed, renamed_over, turned_into_a_fifo])
@pytest.mark.parametrize("threads", THREADS)
def test_a_file_that_changes_after_its_header_was_read_ends_in_the_typed_error(
    tmp_path: Path, change: Callable[[Path], None], threads: int
) -> None:
    shards = write_shards(tmp_path, 3)
    os.utime(shards[1], ns=(0, 0))
    weights = ThreadedReader(num_threads=threads, chunk_bytes=16).iter_weights(shards)
    change(shards[1])
    assert [next(weights)[0] for _ in range(2)] == ["s1.t0", "s1.t1"]
    with pytest.raises(FileChangedError) as caught:
        next(weights)
    assert str(shards[1]) == caught.value.path


@pytest.mark.parametrize("change", [cut, grown, rewritten])
@pytest.mark.parametrize("threads", THREADS)
def test_a_file_that_changes_while_it_is_read_hands_out_nothing_of_what_it_held(
    tmp_path: Path, change: Callable[[Path], None], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, 3)
    os.utime(shards[1], ns=(0, 0))
    read, first, changed = direct.read, threading.Lock(), threading.Event()

    def changing(file: Any, buffers: Any, offset: int) -> int:
        if file.path == str(shards[1]):
            if first.acquire(blocking=False):
                change(shards[1])
                changed.set()
            assert changed.wait(SECONDS)
        return read(file, buffers, offset)

    monkeypatch.setattr(direct, "read", changing)
    weights = ThreadedReader(num_threads=threads, chunk_bytes=60).iter_weights(shards)
    assert [next(weights)[0] for _ in range(2)] == ["s1.t0", "s1.t1"]
    with pytest.raises(FileChangedError) as caught:
        next(weights)
    assert (str(shards[1]), "s2.t0") == (caught.value.path, caught.value.tensor)


@pytest.mark.parametrize("threads", THREADS)
def test_targets_that_were_written_before_an_error_are_named(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": tensor("U8", 10, seed=n) for n in range(200)})
    begin = path.stat().st_size - 2000 + 500
    monkeypatch.setattr(direct, "read", failing(OSError(errno.EIO, "broken"), begin=begin, end=begin + 1))
    targets = {f"t{n}": torch.zeros(10, dtype=torch.uint8) for n in range(200)}
    with pytest.raises(UnreadableFileError) as caught:
        ThreadedReader(num_threads=threads, chunk_bytes=10).read_into([path], targets)
    written = caught.value.written
    assert tuple(f"t{n}" for n in range(len(written))) == written
    assert caught.value.tensor == "t50"
    assert {name for name, target in targets.items() if target.any()} <= set(written)
    assert len(written) > 50


def test_a_target_that_nothing_was_written_to_is_not_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    reader = ThreadedReader(num_threads=1)
    reader.read_meta(shards)
    targets = {f"s{s}.t{t}": torch.zeros(3, 5) for s in (1, 2) for t in (0, 1)}
    known = reader._headers.read(shards)
    shards[0].unlink()
    reader._headers.read = lambda files: known  # type: ignore[method-assign]
    with pytest.raises(FileChangedError) as caught:
        reader.read_into(shards, targets)
    assert caught.value.written == ()


def test_strided_targets_are_named_once_their_bytes_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": tensor("U8", 10, 10, seed=n) for n in range(9)})
    begin = path.stat().st_size - 100 * 5
    monkeypatch.setattr(direct, "read", failing(OSError(errno.EIO, "broken"), begin=begin))
    targets = {f"t{n}": torch.zeros(10, 10, dtype=torch.uint8).t() for n in range(9)}
    with pytest.raises(UnreadableFileError) as caught:
        ThreadedReader(num_threads=4, chunk_bytes=100).read_into([path], targets)
    assert caught.value.written == ("t0", "t1", "t2", "t3")
    assert {"t0", "t1", "t2", "t3"} == {name for name, target in targets.items() if target.any()}


def test_an_interrupt_while_reading_stops_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand requests of 10 ms would take a minute."""
    read, begun = direct.read, threading.Event()

    def slow(file: Any, buffers: Any, offset: int) -> int:
        begun.set()
        threading.Event().wait(0.01)
        return read(file, buffers, offset)

    recorded = Recorded(slow)
    monkeypatch.setattr(direct, "read", recorded)
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 10_000)})

    def interrupt() -> None:
        begun.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        ThreadedReader(chunk_bytes=1).read_into([path], {"a": torch.zeros(10_000, dtype=torch.uint8)})
    killer.join(SECONDS)
    assert len(recorded.reads) < 500


def outcome(paths: list[Path], threads: int) -> tuple[list[Any], Any]:
    """What is handed out, in order, and the error at the end."""
    got = []
    try:
        for name, value in ThreadedReader(num_threads=threads, chunk_bytes=7, max_in_flight_bytes=64).iter_weights(
            paths
        ):
            got.append((name, value.dtype, tuple(value.shape), bits(value)))
    except CheckpointError as error:
        return got, (type(error), str(error))
    return got, None


@pytest.mark.parametrize("broken", [False, True], ids=["sound", "broken"])
def test_order_bytes_and_errors_are_the_same_for_any_number_of_threads_over_a_hundred_runs(
    tmp_path: Path, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests (seven bytes each), failures in two shards, reads that end in any order."""
    shards = [
        write_tensors(
            tmp_path / f"model-{s}.safetensors",
            {f"s{s}.{n}": ("U8", [size], noise(size, (s, n))) for n, size in enumerate([3, 0, 20, 7, 41])},
        )
        for s in (1, 2, 3)
    ]
    jitter = random.Random(0)
    fail = {2: shards[1].stat().st_size - 30, 3: shards[2].stat().st_size - 71}

    def read(file: Any, buffers: Any, offset: int) -> int:
        if jitter.random() < 0.1:
            threading.Event().wait(jitter.random() / 2000)
        for shard, at in fail.items():
            if broken and file.path == str(shards[shard - 1]) and offset <= at < offset + sum(map(len, buffers)):
                raise OSError(errno.EIO, "broken")
        return os.preadv(file.fd, [buffers[0][:5]], offset)

    monkeypatch.setattr(direct, "read", read)
    expected, error = outcome(shards, 1)
    assert (9, UnreadableFileError) == (len(expected), error[0]) if broken else (len(expected), error) == (15, None)
    for run in range(100):
        assert (expected, error) == outcome(shards, THREADS[run % 4]), f"run {run}"


def test_a_target_that_a_graph_holds_is_known_to_have_changed(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("F32", [4], noise(16))})
    x, target = torch.ones(4, requires_grad=True), torch.full((4,), 3.0)
    product = (x * target).sum()
    ThreadedReader().read_into([path], {"a": target})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()  # type: ignore[no-untyped-call]


def test_a_fork_in_the_midst_of_reading_ends_and_can_begin_anew(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 4, tensors=64)
    source = """
        import os, sys
        from weight_readers_threaded.reader import ThreadedReader
        for _ in range(5):
            reader = ThreadedReader(num_threads=8, chunk_bytes=64, max_in_flight_bytes=256)
            weights = reader.iter_weights(sys.argv[1:])
            next(weights)
            child = os.fork()
            if child == 0:
                try:
                    list(weights)
                except RuntimeError as error:
                    said = "begin anew" in str(error)
                weights.close()
                os._exit(0 if said and list(ThreadedReader(num_threads=2).iter_weights(sys.argv[1:])) else 1)
            assert os.waitpid(child, 0)[1] == 0
            weights.close()
        print("ended")
    """
    assert output_of(dedent(source), *shards) == "ended"
