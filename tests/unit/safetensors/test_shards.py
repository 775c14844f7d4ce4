# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import floats, write_sharded, write_tensors

from weight_readers.errors import (
    CheckpointNotFoundError,
    CheckpointProblems,
    DuplicateTensorError,
    LfsPointerError,
    TruncatedFileError,
)
from weight_readers_files import natural_key, natural_order
from weight_readers_safetensors import read_headers


def one(path: Path, name: str) -> Path:
    return write_tensors(path, {name: ("F32", [1], floats(1))})


def test_shards_go_in_natural_order_whatever_order_they_come_in() -> None:
    names = [f"model-{i}.safetensors" for i in (1, 2, 9, 10, 11, 100)]
    shuffled = random.Random(0).sample(names, len(names))
    assert natural_order(shuffled) == names


@given(st.lists(st.text()))
def test_any_name_has_a_key_and_the_order_is_total(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)


@pytest.mark.parametrize(
    "names", [["", "a"], ["1", "a"], ["01", "1"], ["a", "a1", "a1b"], ["²", "٣", "3"], ["9" * 9999]]
)
def test_names_outside_any_pattern_do_not_crash(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_key)) == sorted(names)


def test_leading_zeros_do_not_count() -> None:
    assert sorted(["m-010", "m-2", "m-0001"], key=natural_key) == ["m-0001", "m-2", "m-010"]


def test_headers_come_as_one_checkpoint_in_shard_order(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path, 12)
    found = read_headers([str(shards[-1]), *reversed(shards[:-1])])
    assert list(found) == [f"t{i}" for i in range(1, 13)]
    assert [file.path for file in found.files] == [str(shard) for shard in shards]
    assert found.files[0].metadata == {"format": "pt"}
    assert found["t3"].file == str(shards[2])
    assert shards[2].read_bytes()[found["t3"].offset :] == floats(3, 3.5)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("make", [str, Path, lambda path: os.fsencode(path)])
def test_a_bare_path_is_refused(make: object, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="sequence of paths"):
        read_headers(make(one(tmp_path / "a", "x")))  # type: ignore[operator]


def test_no_files_are_refused() -> None:
    with pytest.raises(ValueError, match="files is empty"):
        read_headers([])


def test_a_name_in_two_files_names_both(tmp_path: Path) -> None:
    first, second = one(tmp_path / "model-1", "x"), one(tmp_path / "model-2", "x")
    with pytest.raises(DuplicateTensorError) as caught:
        read_headers([first, second])
    assert f"also in {first}: {second}, tensor 'x'" in str(caught.value)
    assert [meta.name for meta in caught.value.partial] == ["x"]


def test_two_copies_of_a_checkpoint_are_one_problem(tmp_path: Path) -> None:
    tensors = {f"t{i}": ("F32", [1], floats(1)) for i in range(5)}
    files = [write_tensors(tmp_path / name, tensors) for name in ("a", "b")]
    with pytest.raises(DuplicateTensorError, match="and 4 more of its tensors"):
        read_headers(files)


@pytest.mark.parametrize("link", [os.symlink, os.link, None])
def test_one_file_twice_is_refused(link: object, tmp_path: Path) -> None:
    first = again = one(tmp_path / "a", "x")
    if link:
        again = tmp_path / "b"
        link(first, again)  # type: ignore[operator]
    with pytest.raises(DuplicateTensorError, match=r"this file is (given twice|the same file as)"):
        read_headers([first, again])


def test_the_problems_of_all_files_are_collected(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path, 5)
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    shards[2].write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    shards[3].unlink()
    with pytest.raises(CheckpointProblems) as caught:
        read_headers(shards)
    assert [(type(each), each.path) for each in caught.value.problems] == [
        (TruncatedFileError, str(shards[0])),
        (LfsPointerError, str(shards[2])),
        (CheckpointNotFoundError, str(shards[3])),
    ]
    assert caught.value.path == str(tmp_path)
    assert [meta.name for meta in caught.value.partial] == ["t1", "t2", "t5"]


def test_a_relative_and_an_absolute_path_together_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one(tmp_path / "a", "x")
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(b"")
    assert list(read_headers(["a"])) == ["x"]
    with pytest.raises(CheckpointProblems):
        read_headers(["b", tmp_path / "c"])
