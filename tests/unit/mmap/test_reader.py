# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.files import floats, write_tensors
from support.measure import nothing_left_open
from support.tensors import tensor, write_shards

import weight_readers
from weight_readers import FileChangedError
from weight_readers_mmap.reader import MappedReader


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"readonly": 1}, TypeError, "option 'readonly' of reader 'safetensors' must be True or False, not 1"),
        ({"copy": "yes"}, TypeError, "option 'copy' of reader 'safetensors' must be True or False, not 'yes'"),
        ({"prefetch": True}, TypeError, "option 'prefetch' of reader 'safetensors' must be 0 to 64 threads, not True"),
        ({"prefetch": "2"}, TypeError, "option 'prefetch' of reader 'safetensors' must be 0 to 64 threads, not '2'"),
        ({"prefetch": 2.0}, TypeError, "option 'prefetch' of reader 'safetensors' must be 0 to 64 threads, not 2.0"),
        ({"prefetch": None}, TypeError, "option 'prefetch' of reader 'safetensors' must be 0 to 64 threads, not None"),
        ({"prefetch": -1}, ValueError, "option 'prefetch' of reader 'safetensors' must be 0 to 64 threads, not -1"),
        ({"prefetch": 65}, ValueError, "option 'prefetch' of reader 'safetensors' must be 0 to 64 threads, not 65"),
        ({"readonly": True, "copy": True}, ValueError, "'readonly' and 'copy' .* exclude each other"),
    ],
)
def test_a_bad_option_is_refused_with_its_name_value_and_range(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        MappedReader(**options)
    with pytest.raises(kind, match=message):
        weight_readers.select_weight_reader(requested="safetensors", strict=True, options=options)


@pytest.mark.parametrize("prefetch", [0, 1, 64])
def test_the_ends_of_the_range_are_allowed(tmp_path: Path, prefetch: int) -> None:
    shards = write_shards(tmp_path, 2)
    with nothing_left_open():
        assert len(list(MappedReader(prefetch=prefetch).iter_weights(shards))) == 4


def test_an_unchanged_file_is_looked_at_but_its_header_is_not_read_again(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("F32", [1], floats(1))})
    reader = MappedReader()
    reader.read_meta([path])
    before = path.stat()
    _spoil_header_keeping_the_time(path, before)
    assert list(reader.read_meta([path])) == ["a"]
    os.utime(path, (2, 2))
    with pytest.raises(weight_readers.HeaderError):
        reader.read_meta([path])


def _spoil_header_keeping_the_time(path: Path, status: os.stat_result) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"[")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_changes_between_its_header_and_its_tensors_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    weights = iter(MappedReader().iter_weights(shards))
    assert [next(weights)[0] for _ in range(2)] == ["s1.t0", "s1.t1"]
    write_tensors(tmp_path / "new", {"s2.t0": tensor("U8", 3)}).replace(shards[1])
    with pytest.raises(FileChangedError) as caught:
        next(weights)
    assert str(shards[1]) == caught.value.path


def test_a_pass_that_never_begins_opens_nothing(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    with nothing_left_open():
        weights = MappedReader(prefetch=2).iter_weights(shards)
        time.sleep(0)
        assert weights is iter(weights)
