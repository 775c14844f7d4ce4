# SPDX-License-Identifier: Apache-2.0
"""Layouts: the rules of docs/decisions/0003, one test each. The public reports are in tests/reports."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.files import floats, write_index, write_sharded, write_tensors

from weight_readers.errors import (
    AmbiguousCheckpointError,
    BadIndexError,
    CheckpointNotFoundError,
    CheckpointProblems,
    ForeignContentError,
    LfsPointerError,
    MissingShardError,
    UnreadableFileError,
)
from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.listing import FolderListing
from weight_readers_loader.resolve.places import locate
from weight_readers_loader.resolve.references import parse_reference


def resolve(path: Path, **asked: Any) -> Layout:
    return resolve_layout(locate(parse_reference(path)), **asked)


def weights(folder: Path, *names: str) -> None:
    for name in names:
        write_tensors(folder / name, {name: ("F32", [1], floats(1))})


def junk(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"\x80\x02x.")


def read(layout: Layout) -> list[str]:
    return [file.name for file in layout.files]


def reasons(layout: Layout) -> dict[str, str]:
    return dict(layout.left_out)


def test_a_layout_has_paths_and_sizes_of_its_files(tmp_path: Path) -> None:
    shards = write_sharded(tmp_path)
    layout = resolve(tmp_path)
    assert layout.paths == tuple(str(path) for path in shards)
    assert [file.size for file in layout.files] == [path.stat().st_size for path in shards]
    assert (layout.format, layout.root, layout.variant) == ("safetensors", str(tmp_path), None)
    assert (layout.left_out, layout.unindexed, layout.notices) == ((), (), ())


def test_an_index_file_is_a_reference_of_its_own(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    weights(tmp_path, "other.safetensors")
    write_index(tmp_path, {"x": "other.safetensors"}, "second.safetensors.index.json")
    assert read(resolve(tmp_path / "second.safetensors.index.json")) == ["other.safetensors"]
    assert len(read(resolve(tmp_path / "model.safetensors.index.json"))) == 2


def test_several_indexes_are_ambiguous_and_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_index(tmp_path, {"x": "model.safetensors"}, "second.safetensors.index.json")
    with pytest.raises(AmbiguousCheckpointError, match=r"model\.safetensors\.index\.json, second\.safetensors"):
        resolve(tmp_path)


def test_the_index_of_consolidated_files_stands_back(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    weights(tmp_path, "consolidated-00001-of-00001.safetensors")
    write_index(tmp_path, {"x": "consolidated-00001-of-00001.safetensors"}, "consolidated.safetensors.index.json")
    layout = resolve(tmp_path)
    assert layout.index is not None
    assert layout.index.name == "model.safetensors.index.json"
    assert set(reasons(layout)) == {
        "consolidated.safetensors.index.json",
        "consolidated-00001-of-00001.safetensors",
    }


def test_an_index_may_name_files_in_folders_below(tmp_path: Path) -> None:
    weights(tmp_path, "sub/a.safetensors", "sub/b.safetensors")
    write_index(tmp_path, {"a": "sub/a.safetensors", "b": "sub/b.safetensors"})
    assert resolve(tmp_path).paths == (str(tmp_path / "sub/a.safetensors"), str(tmp_path / "sub/b.safetensors"))


def test_an_index_that_names_files_of_another_format_is_refused(tmp_path: Path) -> None:
    junk(tmp_path, "pytorch_model.bin")
    write_index(tmp_path, {"a": "pytorch_model.bin"})
    with pytest.raises(BadIndexError, match=r"pytorch_model\.bin"):
        resolve(tmp_path)


def test_an_index_that_names_a_part_of_a_numbering_is_said(tmp_path: Path) -> None:
    write_sharded(tmp_path, 3)
    write_index(tmp_path, {"t1": "model-00001-of-00003.safetensors", "t2": "model-00002-of-00003.safetensors"})
    assert any("and not model-00003-of-00003.safetensors" in notice for notice in resolve(tmp_path).notices)


def test_an_index_that_is_a_dangling_link_is_an_error(tmp_path: Path) -> None:
    write_sharded(tmp_path, index=False)
    (tmp_path / "model.safetensors.index.json").symlink_to("../../blobs/abc")
    with pytest.raises(UnreadableFileError, match=r"\.\./\.\./blobs/abc"):
        resolve(tmp_path)


def test_a_pytorch_index_is_read_by_the_same_rules(tmp_path: Path) -> None:
    junk(tmp_path, "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "training_args.bin")
    write_index(
        tmp_path,
        {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"},
        "pytorch_model.bin.index.json",
    )
    layout = resolve(tmp_path)
    assert (layout.format, len(layout.files)) == ("pt", 2)
    assert set(reasons(layout)) == {"training_args.bin"}


def test_a_numbering_is_complete_or_an_error_that_lists_what_is_missing(tmp_path: Path) -> None:
    write_sharded(tmp_path, 4, index=False)
    for number in (2, 4):
        (tmp_path / f"model-0000{number}-of-00004.safetensors").unlink()
    with pytest.raises(CheckpointProblems) as caught:
        resolve(tmp_path)
    assert [type(p) for p in caught.value.problems] == [MissingShardError] * 2
    assert [os.path.basename(p.path)[:11] for p in caught.value.problems] == ["model-00002", "model-00004"]


def test_a_numbering_from_zero_is_complete_too(tmp_path: Path) -> None:
    weights(tmp_path, "model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors")
    assert len(read(resolve(tmp_path))) == 2


@pytest.mark.parametrize("odd", ["model-00003-of-00002.safetensors", "model-1-of-2.safetensors"])
def test_a_number_out_of_range_or_twice_is_refused(tmp_path: Path, odd: str) -> None:
    write_sharded(tmp_path, index=False)
    weights(tmp_path, odd)
    with pytest.raises(AmbiguousCheckpointError, match="do not fit the numbering"):
        resolve(tmp_path)


def test_two_totals_of_one_stem_are_ambiguous(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2, index=False)
    write_sharded(tmp_path, 3, index=False)
    with pytest.raises(AmbiguousCheckpointError) as caught:
        resolve(tmp_path)
    assert "(2 of 2 shards)" in str(caught.value.found)
    assert "(3 of 3 shards)" in str(caught.value.found)


def test_several_files_that_nothing_binds_together_are_read_and_named(tmp_path: Path) -> None:
    weights(tmp_path, "encoder.safetensors", "decoder.safetensors")
    (notice,) = resolve(tmp_path).notices
    assert notice.startswith("no index says that these belong together")
    assert "decoder.safetensors, encoder.safetensors" in notice
    assert resolve(tmp_path / "decoder.safetensors").notices == ()


def test_loose_files_beside_shards_are_left_out_and_said(tmp_path: Path) -> None:
    write_sharded(tmp_path, index=False)
    weights(tmp_path, "mtp.safetensors")
    layout = resolve(tmp_path)
    assert len(layout.files) == 2
    assert "no part of" in reasons(layout)["mtp.safetensors"]
    assert any("mtp.safetensors" in notice for notice in layout.notices)


@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model", "pytorch_model"])
def test_a_canonical_single_file_is_the_checkpoint(tmp_path: Path, stem: str) -> None:
    weights(tmp_path, f"{stem}.safetensors", "extra.safetensors")
    layout = resolve(tmp_path)
    assert [f"{stem}.safetensors"] == read(layout)
    assert set(reasons(layout)) == {"extra.safetensors"}


def test_two_canonical_single_files_are_ambiguous(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors", "diffusion_pytorch_model.safetensors")
    with pytest.raises(AmbiguousCheckpointError):
        resolve(tmp_path)


def test_an_adapter_is_left_out_beside_a_model(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors", "adapter_model.safetensors")
    layout = resolve(tmp_path)
    assert read(layout) == ["model.safetensors"]
    assert "adapter" in reasons(layout)["adapter_model.safetensors"]


def test_an_adapter_does_not_push_the_models_bin_aside(tmp_path: Path) -> None:
    weights(tmp_path, "adapter_model.safetensors")
    junk(tmp_path, "pytorch_model.bin")
    assert read(resolve(tmp_path)) == ["pytorch_model.bin"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "consolidated.safetensors"])
def test_an_adapter_or_a_second_copy_alone_is_read_and_said(tmp_path: Path, name: str) -> None:
    weights(tmp_path, name)
    layout = resolve(tmp_path)
    assert [name] == read(layout)
    assert name in layout.notices[0]


def test_training_state_is_left_out_without_a_notice(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors")
    junk(tmp_path, "optimizer.pt", "training_args.bin")
    layout = resolve(tmp_path)
    assert set(reasons(layout)) == {"optimizer.pt", "training_args.bin"}
    assert layout.notices == ()


def test_safetensors_is_preferred_and_the_rest_is_said(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors")
    junk(tmp_path, "pytorch_model.bin")
    layout = resolve(tmp_path)
    assert read(layout) == ["model.safetensors"]
    assert layout.notices == ("1 file left out, of format pt, and safetensors is read: pytorch_model.bin",)


def test_the_format_that_was_asked_for_is_read(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors")
    junk(tmp_path, "pytorch_model.bin")
    assert read(resolve(tmp_path, use_format="pt")) == ["pytorch_model.bin"]


def test_several_gguf_files_are_as_many_models(tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(AmbiguousCheckpointError, match=r"m-Q4_K_M\.gguf, m-Q8_0\.gguf"):
        resolve(tmp_path)


def test_a_gguf_split_is_a_numbering_as_any_other(tmp_path: Path) -> None:
    for number in (1, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(b"GGUF")
    with pytest.raises(MissingShardError, match=r"m-00002-of-00003\.gguf"):
        resolve(tmp_path)


def test_no_weights_is_an_error_that_lists_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "transformer").mkdir()
    with pytest.raises(CheckpointNotFoundError) as caught:
        resolve(tmp_path)
    assert caught.value.found == "config.json, transformer/"


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="found nothing"):
        resolve(tmp_path)


def test_one_shard_given_is_read_alone_and_said(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    layout = resolve(tmp_path / "model-00002-of-00002.safetensors")
    assert read(layout) == ["model-00002-of-00002.safetensors"]
    assert layout.notices == (
        "model-00002-of-00002.safetensors is shard 2 of 2, and only it is read; give the folder to read all of them",
    )


def test_one_rank_file_given_is_read_alone_and_said(tmp_path: Path) -> None:
    weights(tmp_path, "model-rank-1-part-0.safetensors")
    assert "a part of rank 1" in resolve(tmp_path / "model-rank-1-part-0.safetensors").notices[0]


def test_a_file_that_is_given_is_judged_by_its_content(tmp_path: Path) -> None:
    weights(tmp_path, "model.pt")
    layout = resolve(tmp_path / "model.pt")
    assert layout.format == "safetensors"
    assert "named as pt" in layout.notices[0]
    with pytest.raises(ForeignContentError, match="not of the format that was asked for"):
        resolve(tmp_path / "model.pt", use_format="pt")


def test_a_pointer_that_is_given_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(LfsPointerError):
        resolve(tmp_path / "model.safetensors")


def test_a_variant_that_the_given_file_is_not_is_refused(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors", "model.fp16.safetensors")
    with pytest.raises(CheckpointNotFoundError, match="no variant"):
        resolve(tmp_path / "model.safetensors", variant="fp16")
    assert resolve(tmp_path / "model.fp16.safetensors").variant == "fp16"


def test_a_variant_that_the_given_index_is_not_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="variant 'fp16'"):
        resolve(tmp_path / "model.safetensors.index.json", variant="fp16")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"use_format": "onnx"}, "use_format must be one of"),
        ({"rank": 0}, "given together"),
        ({"world_size": 2}, "given together"),
        ({"rank": 2, "world_size": 2}, "between 0 and"),
        ({"rank": -1, "world_size": 2}, "between 0 and"),
    ],
)
def test_an_argument_out_of_range_is_a_value_error(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(tmp_path, **asked)


def test_rank_and_world_size_do_not_matter_to_other_checkpoints(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    assert resolve(tmp_path, rank=1, world_size=4) == resolve(tmp_path)


@pytest.mark.parametrize(
    ("rank", "parts"),
    [(0, ["model-rank-0-part-0.safetensors"]), (1, [f"model-rank-1-part-{n}.safetensors" for n in (0, 1)])],
)
def test_a_rank_reads_its_own_parts(tmp_path: Path, rank: int, parts: list[str]) -> None:
    weights(tmp_path, *(f"model-rank-{r}-part-{p}.safetensors" for r, p in ((0, 0), (1, 0), (1, 1))))
    assert parts == read(resolve(tmp_path, rank=rank, world_size=2))


def test_a_missing_part_or_rank_is_an_error(tmp_path: Path) -> None:
    weights(tmp_path, "model-rank-0-part-0.safetensors", "model-rank-0-part-2.safetensors")
    with pytest.raises(MissingShardError, match="part-1"):
        resolve(tmp_path, rank=0, world_size=1)
    weights(tmp_path, "model-rank-2-part-0.safetensors")
    with pytest.raises(MissingShardError, match="no files of rank 1"):
        resolve(tmp_path, rank=0, world_size=3)


@pytest.mark.parametrize("name", ["model-00001-of-999999.safetensors", "model-rank-0-part-999999.safetensors"])
def test_very_many_missing_shards_are_one_error_and_are_not_looked_up(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights(tmp_path, name)
    looked_up: list[str] = []
    entry = FolderListing.entry
    monkeypatch.setattr(FolderListing, "entry", lambda self, name: looked_up.append(name) or entry(self, name))
    ranks = {"rank": 0, "world_size": 1} if "rank" in name else {}
    with pytest.raises(MissingShardError, match=r"99999[89] of (999999|1000000) shards are missing") as caught:
        resolve(tmp_path, **ranks)
    assert set(looked_up) == {name}
    assert str(caught.value).count(".safetensors") < 20


def test_an_index_that_names_one_of_very_many_shards_says_how_many_it_does_not(tmp_path: Path) -> None:
    weights(tmp_path, "model-00001-of-999999.safetensors")
    write_index(tmp_path, {"a": "model-00001-of-999999.safetensors"})
    (notice,) = resolve(tmp_path).notices
    assert notice.endswith("and 999988 more")
