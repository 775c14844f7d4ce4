# SPDX-License-Identifier: Apache-2.0
"""Alignment, lifetime, and what a write does."""

from __future__ import annotations

import gc
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.files import entry, write_safetensors, write_tensors
from support.measure import descriptors, nothing_left_open, output_of
from support.tensors import bits, contents, digest, noise, tensor, write_shards

from weight_readers import Alignment, Feature, ReaderInfo, WeightReader, Writes
from weight_readers.reader import ReadStats

if TYPE_CHECKING:
    from conftest import Choice

UNALIGNED = {
    "F32 after three bytes": ({"odd": tensor("U8", 3), "x": tensor("F32", 4)}, True),
    "BF16 at an odd address": ({"odd": tensor("U8", 1), "x": tensor("BF16", 5)}, True),
    "F64 at 4 modulo 8": ({"odd": tensor("F32", 1), "x": tensor("F64", 3)}, True),
    "a header without padding": ({"x": tensor("F32", 4), "odd": tensor("U8", 3)}, False),
}


@pytest.fixture(params=UNALIGNED.values(), ids=UNALIGNED)
def unaligned(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A file whose tensor ``x`` does not begin at a multiple of its element size."""
    tensors, pad = request.param
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = entry(dtype, shape, len(body), len(body) + len(data))
        body += data
    if not pad:
        header["__metadata__"] = {"": " " * next(n for n in range(8) if _header_bytes(header, n) % 4 == 1)}
    path = write_safetensors(tmp_path / "m.safetensors", header, body, pad=pad)
    return path, {name: data for name, (_, _, data) in tensors.items()}


def _header_bytes(header: dict[str, object], blanks: int) -> int:
    return len(json.dumps({**header, "__metadata__": {"": " " * blanks}}, separators=(",", ":")))


def test_unaligned_tensors_have_the_right_values_and_an_aligned_address(
    reader: WeightReader, unaligned: tuple[Path, dict[str, bytes]]
) -> None:
    path, written = unaligned
    meta = reader.read_meta([path])["x"]
    kept = dict(reader.iter_weights([path]))
    assert meta.offset % kept["x"].dtype.itemsize, "the test's own file is aligned"
    assert written == {name: bits(values) for name, values in kept.items()}
    if reader.info.alignment is Alignment.NATURAL:
        assert [name for name, values in kept.items() if values.data_ptr() % values.dtype.itemsize] == []


def test_unaligned_tensors_are_counted_as_copied_where_views_were_promised(
    reader: WeightReader, unaligned: tuple[Path, dict[str, bytes]]
) -> None:
    path, _ = unaligned
    calls: list[ReadStats] = []
    list(reader.iter_weights([path], on_progress=calls.append))
    copies = Feature.FILE_MAPPING in reader.info.features and reader.info.alignment is Alignment.NATURAL
    assert int(copies) == calls[-1].copied


def test_every_tensor_stays_as_it_was_when_all_are_kept(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 4, tensors=50)
    kept, seen = [], {}
    for name, values in reader.iter_weights(shards):
        kept.append((name, values))
        seen[name] = bits(values)
    gc.collect()
    assert seen == {name: bits(values) for name, values in kept}
    expected = {f"s{s}.t{n}": tensor("F32", 3, 5, seed=(s, n))[2] for s in range(1, 5) for n in range(50)}
    assert expected == seen


def test_tensors_outlive_generator_reader_and_file_name(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    expected = contents(reader.iter_weights(shards))
    weights = iter(reader.iter_weights(shards))
    kept = [next(weights)]
    weights.close()  # type: ignore[attr-defined]
    for shard in shards:
        shard.unlink()
    del weights
    gc.collect()
    assert {kept[0][0]: expected[kept[0][0]]} == contents(kept)


def test_two_passes_do_not_share_what_is_written(reader: WeightReader, tmp_path: Path) -> None:
    if reader.info.writes is Writes.READ_ONLY:
        pytest.skip("read-only tensors")
    path = write_tensors(tmp_path / "m.safetensors", {"x": ("F32", [4], bytes(16))})
    first, second = (dict(reader.iter_weights([path]))["x"] for _ in range(2))
    first.add_(1)
    assert (first.tolist(), second.tolist()) == ([1.0] * 4, [0.0] * 4)


def test_a_write_never_reaches_the_file_nor_another_tensor(reader: WeightReader, tmp_path: Path) -> None:
    if reader.info.writes is Writes.READ_ONLY:
        pytest.skip("read-only tensors")
    shards = write_shards(tmp_path, 2)
    before = [digest(shard) for shard in shards]
    kept = dict(reader.iter_weights(shards))
    expected = {name: bits(values) for name, values in kept.items()}
    kept["s1.t1"].view(torch.int32).fill_(7)
    expected["s1.t1"] = bits(torch.full((3, 5), 7, dtype=torch.int32))
    assert expected == {name: bits(values) for name, values in kept.items()}
    assert before == [digest(shard) for shard in shards]


WRITE = """
import json, os, sys, weight_readers
name, modes, path = json.loads(sys.argv[1])
def write(options):
    reader = weight_readers.select_weight_reader(requested=name, format="safetensors", strict=True, options=options)
    values = dict(reader.iter_weights([path]))["x"]
    values.sum()
    values.fill_(1)
for options in modes:
    child = os.fork()
    if child == 0:
        write(options)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_write_into_a_read_only_tensor_ends_the_process_and_no_other(
    info: ReaderInfo, modes: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": tensor("I32", 4)})
    before = digest(path)
    statuses = [int(line) for line in output_of(WRITE, json.dumps([info.name, modes, str(path)])).split()]
    assert [-signal.SIGSEGV if options.get("readonly") else 0 for options in modes] == statuses
    assert before == digest(path)


def test_the_declared_writes_match_the_mode(choice: Choice, reader: WeightReader) -> None:
    assert bool(choice.options.get("readonly")) == (reader.info.writes is Writes.READ_ONLY)


def test_a_drained_reader_leaves_nothing_open_although_tensors_are_kept(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 5)
    kept = []
    with nothing_left_open():
        kept += list(reader.iter_weights(shards))
    assert len(kept) == 10


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_early_leaves_nothing_open(reader: WeightReader, tmp_path: Path, taken: int) -> None:
    shards = write_shards(tmp_path, 5)
    with nothing_left_open():
        weights = iter(reader.iter_weights(shards))
        kept = [next(weights) for _ in range(taken)]
        weights.close()  # type: ignore[attr-defined]
    assert taken == len(kept)


def test_dropping_the_generator_leaves_nothing_open(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 5)
    with nothing_left_open():
        next(iter(reader.iter_weights(shards)))


def test_an_error_of_the_consumer_leaves_nothing_open(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 5)

    def on_progress(stats: ReadStats) -> None:
        if stats.tensors == 3:
            raise InterruptedError

    with nothing_left_open(), pytest.raises(InterruptedError):
        list(reader.iter_weights(shards, on_progress=on_progress))


def test_a_file_is_not_held_once_its_reading_is_over(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"x": ("U8", [9], noise(9))})
    kept = dict(reader.iter_weights([path]))
    assert str(path) not in descriptors().values()
    assert kept["x"].numel() == 9
