# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.files import floats, write_index, write_sharded, write_tensors

from weight_readers import BadIndexError, CheckpointError, CheckpointProblems, MissingTensorError, select_weight_reader
from weight_readers_loader.preflight import Preflight, preflight
from weight_readers_loader.resolve import resolve


def check(folder: Path, *, strict: bool = False, **which: Any) -> Preflight:
    return preflight(resolve(folder, **which), select_weight_reader(format="safetensors"), strict=strict)


def refused(folder: Path, **which: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        check(folder, **which)
    return caught.value


def one(value: float) -> tuple[str, list[int], bytes]:
    return "F32", [1], floats(value)


def test_tensors_of_all_shards_are_one_mapping_in_one_group(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path, 3)
    found = check(tmp_path)
    assert list(found.tensors) == ["t1", "t2", "t3"]
    assert found.groups == (tuple(str(shard) for shard in shards),)
    assert (found.restricted, found.notices, found.aliases) == (False, (), {})


def test_files_that_share_a_name_which_the_index_decides_are_groups_of_their_own(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"w": one(1)})
    write_tensors(tmp_path / "b.safetensors", {"w": one(2), "x": one(3)})
    write_index(tmp_path, {"w": "a.safetensors", "x": "b.safetensors"})
    found = check(tmp_path)
    assert found.groups == ((str(tmp_path / "a.safetensors"),), (str(tmp_path / "b.safetensors"),))
    assert found.restricted
    assert {name: Path(meta.file).name for name, meta in found.tensors.items()} == {
        "w": "a.safetensors",
        "x": "b.safetensors",
    }


def test_a_tensor_that_is_in_another_file_than_the_index_says_is_a_problem_that_says_where_it_is(
    tmp_path: Path,
) -> None:
    write_sharded(tmp_path, index=False)
    names = [path.name for path in sorted(tmp_path.glob("*.safetensors"))]
    write_index(tmp_path, {"t1": names[1], "t2": names[1]})
    error = refused(tmp_path)
    assert (type(error), error.tensor, error.path) == (MissingTensorError, "t1", str(tmp_path / names[1]))
    assert error.found == f"it is in {tmp_path / names[0]}"


def test_however_many_tensors_a_file_lacks_they_are_one_problem_with_a_count(tmp_path: Path) -> None:
    (path,) = write_sharded(tmp_path, 1)
    write_index(tmp_path, {"t1": path.name, **{f"gone.{i}": path.name for i in range(500)}})
    error = refused(tmp_path)
    assert (type(error), error.tensor) == (MissingTensorError, "gone.0")
    assert "(and 499 more)" in str(error)
    assert len(str(error)) < 1000


def test_faults_of_different_kinds_are_all_told_and_the_rest_is_still_listed(tmp_path: Path) -> None:
    paths = write_sharded(tmp_path, 4)
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    write_tensors(paths[2], {"other": one(1)})
    error = refused(tmp_path, keep_problems=True)
    assert isinstance(error, CheckpointProblems)
    assert [(type(p).__name__, p.path) for p in error.problems] == [
        ("MissingShardError", str(paths[0])),
        ("TruncatedFileError", str(paths[1])),
        ("MissingTensorError", str(paths[2])),
    ]
    assert {tensor.name for tensor in error.partial} == {"t2", "other", "t4"}


def test_an_error_about_the_index_lists_the_tensors_too(tmp_path: Path) -> None:
    (path,) = write_sharded(tmp_path, 1)
    write_index(tmp_path, {"t1": path.name, "gone": path.name})
    assert [tensor.name for tensor in refused(tmp_path).partial] == ["t1"]


def test_no_shard_at_all_is_told_without_a_reader_being_asked(tmp_path: Path) -> None:
    for path in write_sharded(tmp_path, 2):
        path.unlink()
    assert [type(p).__name__ for p in refused(tmp_path, keep_problems=True).problems] == ["MissingShardError"] * 2


def test_a_total_that_is_not_theirs_is_a_notice(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"w": one(1)})
    write_index(tmp_path, {"w": "a.safetensors"}, total_size=400)
    (notice,) = check(tmp_path).notices
    assert "400" in notice
    assert " 4" in notice


def test_strict_makes_problems_of_what_the_index_does_not_name(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"w": one(1), "x": one(2)})
    write_index(tmp_path, {"w": "a.safetensors"})
    assert len(check(tmp_path).notices) == 1
    with pytest.raises(BadIndexError, match="'x'"):
        check(tmp_path, strict=True)
