# SPDX-License-Identifier: Apache-2.0
"""Sets of files: whole sets are one model, and whatever is missing, foreign or twice is named."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from unit.gguf.gguf_bytes import write_gguf

from weight_readers.errors import (
    AmbiguousCheckpointError,
    CheckpointError,
    DuplicateTensorError,
    HeaderError,
    MissingShardError,
    TruncatedFileError,
)
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.splits import split_siblings

F32_4 = (0, (4,), bytes(16))


def shard(folder: Path, number: int, of: int, *, total: int | None = None, stem: str = "m", **extra: Any) -> Path:
    """One file of a set as gguf-split writes it: two tensors, the architecture in the first file only."""
    metadata: dict[str, Any] = {"general.architecture": "llama", "general.name": "M"} if number == 1 else {}
    metadata |= {"split.no": ("UINT16", number - 1), "split.count": ("UINT16", of)}
    metadata["split.tensors.count"] = ("INT32", 2 * of if total is None else total)
    metadata |= extra.pop("metadata", {})
    tensors = extra.pop("tensors", {f"{number}.a": F32_4, f"{number}.b": F32_4})
    return write_gguf(folder / f"{stem}-{number:05d}-of-{of:05d}.gguf", tensors, metadata, **extra)


def whole_set(folder: Path, of: int = 3) -> list[Path]:
    return [shard(folder, number, of) for number in range(1, of + 1)]


def problems(files: list[Path]) -> list[CheckpointError]:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(files)
    return list(caught.value.problems)


def test_a_whole_set_is_one_model_with_the_metadata_of_its_first_file(tmp_path: Path) -> None:
    files = whole_set(tmp_path)
    checkpoint = read_checkpoint(list(reversed(files)))
    assert list(checkpoint.tensors) == ["1.a", "1.b", "2.a", "2.b", "3.a", "3.b"]
    assert [str(path) for path in files] == [header.path for header in checkpoint.headers]
    assert checkpoint.metadata["general.name"] == "M"


def test_the_files_number_themselves_whatever_their_names_are(tmp_path: Path) -> None:
    first, second = whole_set(tmp_path, 2)
    last = first.rename(tmp_path / "z.gguf")
    assert [str(last), str(second)] == [header.path for header in read_checkpoint([second, last]).headers]


def test_alignments_within_a_set_may_differ(tmp_path: Path) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 2, 2, alignment=64)]
    assert [header.alignment for header in read_checkpoint(files).headers] == [32, 64]


def test_a_set_of_one_file_is_a_model_by_itself(tmp_path: Path) -> None:
    assert len(read_checkpoint([shard(tmp_path, 1, 1)]).tensors) == 2


@pytest.mark.parametrize("kind", ["UINT8", "INT32", "UINT32", "UINT64", "INT64"])
def test_the_numbers_of_a_set_may_be_of_any_integer_type(tmp_path: Path, kind: str) -> None:
    def numbers(no: int) -> Mapping[str, Any]:
        return {"split.no": (kind, no), "split.count": (kind, 2), "split.tensors.count": (kind, 4)}

    files = [shard(tmp_path, number, 2, metadata=numbers(number - 1)) for number in (1, 2)]
    assert len(read_checkpoint(files).tensors) == 4


def test_files_without_a_set_are_taken_together_where_their_names_differ(tmp_path: Path) -> None:
    files = [write_gguf(tmp_path / f"{name}.gguf", {name: F32_4}) for name in ("m10", "m9")]
    assert list(read_checkpoint(files).tensors) == ["m9", "m10"]


def test_a_missing_file_of_a_set_is_named(tmp_path: Path) -> None:
    files = whole_set(tmp_path)
    files[1].unlink()
    (problem,) = problems([files[0], files[2]])
    assert (MissingShardError, str(files[1])) == (type(problem), problem.expected)
    assert "1 of the 3 files" in problem.what


def test_one_file_of_a_set_whose_others_lie_beside_it_says_so(tmp_path: Path) -> None:
    files = whole_set(tmp_path)
    (problem,) = problems([files[1]])
    assert (MissingShardError, f"{files[0]}, {files[2]}") == (type(problem), problem.expected)
    assert problem.fix == "They lie beside it: give all files of the set"


def test_one_file_of_a_set_that_has_another_name_says_which_files_it_lacks(tmp_path: Path) -> None:
    renamed = shard(tmp_path, 1, 3).rename(tmp_path / "m.gguf")
    (problem,) = problems([renamed])
    assert (MissingShardError, "file 2 of 3, file 3 of 3") == (type(problem), problem.expected)


def test_of_a_large_set_only_the_first_missing_files_are_named(tmp_path: Path) -> None:
    (problem,) = problems([shard(tmp_path, 2, 65_535)])
    names = [str(tmp_path / f"m-{number:05d}-of-65535.gguf") for number in (1, 3, 4, 5, 6)]
    assert (MissingShardError, ", ".join(names) + " and 65529 more") == (type(problem), problem.expected)
    assert problem.what == "the file is one of a set of 65535, and 65534 of them were not given"


# Names without ``split.*`` in the header.


def plain(folder: Path, *names: str, metadata: Mapping[str, Any] | None = None) -> list[Path]:
    return [write_gguf(folder / name, {name: F32_4}, metadata) for name in names]


@pytest.mark.parametrize(
    "name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-00000.gguf", "m-00001-of-65536.gguf"]
)
def test_a_name_that_cannot_be_true_is_refused(tmp_path: Path, name: str) -> None:
    (problem,) = problems(plain(tmp_path, name))
    assert (AmbiguousCheckpointError, str(tmp_path / name), name) == (type(problem), problem.path, problem.found)
    assert "Rename it if it is a whole model" in str(problem)


def test_a_file_that_is_a_part_by_its_name_only_is_refused_without_the_others(tmp_path: Path) -> None:
    first, second = plain(tmp_path, "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    (problem,) = problems([second])
    assert (MissingShardError, str(second), str(first)) == (type(problem), problem.path, problem.expected)
    assert "They lie beside it" in str(problem)
    first.unlink()
    (problem,) = problems([second])
    assert "Download all files of the set into one folder; rename it if it is a whole model" in str(problem)


def test_a_set_by_names_only_is_read_whole(tmp_path: Path) -> None:
    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "n-00001-of-00001.gguf", "other.gguf"]
    assert names == list(read_checkpoint(plain(tmp_path, *names)).tensors)


def test_parts_of_two_sets_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    found = problems(plain(tmp_path, "m-00001-of-00002.gguf", "n-00002-of-00002.gguf"))
    assert [Path(str(each.expected)).name for each in found] == ["m-00002-of-00002.gguf", "n-00001-of-00002.gguf"]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", ["m-00001-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_a_file_whose_header_says_it_is_whole_may_have_any_name(tmp_path: Path, name: str, count: int) -> None:
    # gguf-split leaves split.count 0 in what it merged.
    metadata = {"split.count": ("UINT16", count), "split.no": ("UINT16", 0)}
    assert len(read_checkpoint(plain(tmp_path, name, metadata=metadata)).tensors) == 1


# What belongs to a set.


def test_a_file_of_another_set_is_foreign(tmp_path: Path) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 2, 3)]
    assert [(AmbiguousCheckpointError, str(files[1]))] == [(type(p), p.path) for p in problems(files)]


def test_a_file_without_a_set_among_those_of_one_is_foreign(tmp_path: Path) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 2, 2), write_gguf(tmp_path / "x.gguf", {"x": F32_4})]
    assert [(AmbiguousCheckpointError, str(files[2]))] == [(type(p), p.path) for p in problems(files)]


def test_a_set_of_as_many_files_and_another_number_of_tensors_is_foreign(tmp_path: Path) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 2, 2, total=9)]
    assert [AmbiguousCheckpointError] == [type(p) for p in problems(files)]


def test_another_architecture_is_foreign(tmp_path: Path) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 2, 2, metadata={"general.architecture": "qwen3"})]
    (problem,) = problems(files)
    assert (AmbiguousCheckpointError, "general.architecture llama", "qwen3") == (
        type(problem),
        problem.expected,
        problem.found,
    )


def test_architectures_longer_than_any_are_told_apart_and_cut(tmp_path: Path) -> None:
    files = [
        shard(tmp_path, number, 2, metadata={"general.architecture": "x" * length})
        for number, length in ((1, 100_000), (2, 100_001))
    ]
    (problem,) = problems(files)
    assert (f"general.architecture {'x' * 80}... (100000 bytes)", f"{'x' * 80}... (100001 bytes)") == (
        problem.expected,
        problem.found,
    )


def test_one_number_twice_is_refused_naming_both_files(tmp_path: Path) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 1, 2, stem="n", tensors={"c": F32_4, "d": F32_4})]
    (problem,) = problems(files)
    assert (AmbiguousCheckpointError, str(files[1]), True) == (
        type(problem),
        problem.path,
        str(files[0]) in str(problem),
    )


def test_a_number_of_tensors_that_is_not_that_of_the_set_is_refused(tmp_path: Path) -> None:
    (problem,) = problems([shard(tmp_path, number, 2, total=5) for number in (1, 2)])
    assert (HeaderError, "split.tensors.count 5", 4) == (type(problem), problem.expected, problem.found)


@pytest.mark.parametrize(
    "wrong",
    [
        {"split.no": ("UINT16", 2)},
        {"split.no": ("INT32", -1)},
        {"split.no": "0"},
        {"split.no": True},
        {"split.count": 2.0},
        {"split.count": ("INT32", -1)},
        {"split.count": ("INT32", -1), "split.no": 0},
        {"split.count": 65_536},
        {"split.count": ("UINT64", 2**64 - 1)},
        {"split.count": [2]},
        {"split.count": 0},
        {"split.tensors.count": [4]},
    ],
)
def test_numbers_of_a_set_that_are_none_are_refused_with_their_key(tmp_path: Path, wrong: Mapping[str, Any]) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 2, 2, metadata=wrong)]
    (problem,) = problems(files)
    assert (HeaderError, str(files[1])) == (type(problem), problem.path)
    assert "split." in problem.what


def test_a_name_in_two_files_is_a_duplicate(tmp_path: Path) -> None:
    files = [shard(tmp_path, 1, 2), shard(tmp_path, 2, 2, tensors={"1.a": F32_4, "1.b": F32_4})]
    (problem,) = problems(files)
    assert (DuplicateTensorError, str(files[1]), "1.a") == (type(problem), problem.path, problem.tensor)
    assert problem.what == f"also in {files[0]} (and 1 more of its tensors)"


def test_a_file_given_twice_is_named_as_such(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a": F32_4})
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    for again in (path, link):
        (problem,) = problems([path, again])
        assert (DuplicateTensorError, "this file is given twice") == (type(problem), problem.what)


def test_all_that_is_wrong_with_all_files_is_told_at_once(tmp_path: Path) -> None:
    files = whole_set(tmp_path)
    files[0].write_bytes(files[0].read_bytes()[:-17])
    files[2].unlink()
    found = {type(p).__name__: p.path for p in problems(files)}
    assert {"TruncatedFileError": str(files[0]), "CheckpointNotFoundError": str(files[2])} == found


def test_the_error_lists_the_tensors_that_could_be_read(tmp_path: Path) -> None:
    files = whole_set(tmp_path, 2)
    files[1].write_bytes(files[1].read_bytes()[:-17])
    with pytest.raises(TruncatedFileError) as caught:
        read_checkpoint(files)
    assert [meta.name for meta in caught.value.partial] == ["1.a", "1.b", "2.a", "2.b"]


@pytest.mark.parametrize("bare", ["m.gguf", b"m.gguf", Path("m.gguf")])
def test_a_bare_path_is_no_list_of_files(bare: Any) -> None:
    with pytest.raises(TypeError, match="a sequence of paths"):
        read_checkpoint(bare)


def test_no_files_are_no_model() -> None:
    with pytest.raises(ValueError, match="files is empty"):
        read_checkpoint([])


@pytest.mark.parametrize("member", [0, 1, 2])
def test_any_file_of_a_set_finds_the_whole_set_in_order(tmp_path: Path, member: int) -> None:
    files = [str(path) for path in whole_set(tmp_path)]
    shutil.copy(files[0], tmp_path / "other.gguf")
    assert files == split_siblings(files[member])


def test_siblings_are_found_in_the_current_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_set(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    assert split_siblings("m-00002-of-00002.gguf") == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-1-of-2.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-00001-of-00002.bin"]
)
def test_a_name_of_no_set_stands_for_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert [str(tmp_path / name)] == split_siblings(tmp_path / name)


def test_siblings_that_are_not_there_are_named(tmp_path: Path) -> None:
    files = whole_set(tmp_path, 9)
    for path in files[2:]:
        path.unlink()
    with pytest.raises(MissingShardError) as caught:
        split_siblings(files[0])
    assert "7 of the 9 files" in caught.value.what
    assert caught.value.expected == ", ".join(path.name for path in files[2:7]) + " and 2 more"


def test_a_set_in_a_folder_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingShardError, match="2 of the 2 files"):
        split_siblings(tmp_path / "nowhere" / "m-00001-of-00002.gguf")
