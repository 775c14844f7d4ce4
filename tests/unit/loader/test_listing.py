# SPDX-License-Identifier: Apache-2.0
"""Listings: order, what a name is, and one error for all names that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from weight_readers.errors import (
    CheckpointNotFoundError,
    CheckpointProblems,
    EmptyFileError,
    MissingShardError,
    UnreadableFileError,
)
from weight_readers_loader.resolve.listing import Entry, FolderListing, natural_key
from weight_readers_loader.resolve.usable import readable_files, usable_files


@pytest.mark.parametrize(
    "names",
    [
        ["model-1", "model-2", "model-10"],
        ["", "1", "2", "2a", "10", "a", "a1", "a1b", "ab"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "mtp.safetensors"],
        ["layer.1.9" + "0" * 5000, "layer.2.1"],
    ],
)
def test_natural_order_reads_numbers_as_numbers(names: list[str]) -> None:
    backwards = names[::-1]
    assert names == sorted(backwards, key=natural_key)


def test_natural_order_is_total_for_names_that_differ_in_zeros_only() -> None:
    names = ["a-001", "a-01", "a-1"]
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)


def test_a_folder_lists_files_and_folders_apart_in_natural_order(tmp_path: Path) -> None:
    for name in ("w10", "w2", "w1"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "dangling").symlink_to("nothing")
    here = FolderListing(str(tmp_path))
    assert here.names() == ("dangling", "w1", "w2", "w10")
    assert here.folders() == ("sub",)


def test_a_folder_is_read_once(tmp_path: Path) -> None:
    here = FolderListing(str(tmp_path))
    assert here.names() == ()
    (tmp_path / "later").write_bytes(b"x")
    assert here.names() == ()


def test_names_below_the_folder_are_looked_up_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w").write_bytes(b"abc")
    here = FolderListing(str(tmp_path))
    assert here.entry("sub/w") == Entry(name="sub/w", size=3)
    assert here.path_of("sub/w") == str(tmp_path / "sub" / "w")
    assert here.entry("sub/x") is None
    assert here.entry("sub/w/x") is None


def test_an_entry_says_why_it_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("../../blobs/abc")
    here = FolderListing(str(tmp_path))
    faults = {name: (entry.fault, entry.absent) for name in os.listdir(tmp_path) if (entry := here.entry(name))}
    assert faults == {
        "folder": ("a folder", False),
        "fifo": ("a FIFO", False),
        "loop": ("a symbolic link that leads back to itself", False),
        "dangling": ("a symbolic link to ../../blobs/abc, which is not there", True),
    }


def test_a_link_has_the_size_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_bytes(b"12345")
    (tmp_path / "w").symlink_to("blobs/abc")
    assert FolderListing(str(tmp_path)).entry("w") == Entry(name="w", size=5)


def test_bytes_are_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"12345")
    assert FolderListing(str(tmp_path)).read_bytes("w", 3) == b"123"
    assert FolderListing(str(tmp_path)).read_bytes("w", 30) == b"12345"


def test_reading_a_fifo_is_refused_and_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w")
    with pytest.raises(UnreadableFileError, match="a FIFO"):
        FolderListing(str(tmp_path)).read_bytes("w", 3)


def test_a_folder_that_is_gone_or_no_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(CheckpointNotFoundError, match="no such folder"):
        FolderListing(str(tmp_path / "gone")).names()
    with pytest.raises(UnreadableFileError, match="cannot be listed"):
        FolderListing(str(tmp_path / "file")).names()


def test_usable_files_come_in_natural_order_with_their_sizes(tmp_path: Path) -> None:
    for name in ("w10", "w2"):
        (tmp_path / name).write_bytes(name.encode())
    files = usable_files(FolderListing(str(tmp_path)), ["w10", "w2"], of="x", expected="y")
    assert [(file.name, file.size) for file in files] == [("w2", 2), ("w10", 3)]


def test_all_names_that_cannot_be_used_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "good").write_bytes(b"x")
    (tmp_path / "late.incomplete").write_bytes(b"x")
    names = ["good", "missing", "empty", "folder", "late"]
    with pytest.raises(CheckpointProblems) as caught:
        usable_files(FolderListing(str(tmp_path)), names, of="the index", expected="a file")
    kinds = {os.path.basename(p.path): (type(p), p.found) for p in caught.value.problems}
    assert kinds == {
        "missing": (MissingShardError, "nothing"),
        "empty": (EmptyFileError, None),
        "folder": (UnreadableFileError, "a folder"),
        "late": (MissingShardError, "late.incomplete, a download that did not finish"),
    }


def test_a_flood_of_missing_names_is_cut_and_counted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointProblems) as caught:
        usable_files(FolderListing(str(tmp_path)), [f"w{n}" for n in range(1000)], of="x", expected="y")
    assert len(caught.value.problems) == 101
    assert "900 more" in str(caught.value.problems[-1])


def test_readable_files_leaves_out_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"x")
    (tmp_path / "empty").write_bytes(b"")
    files = readable_files(FolderListing(str(tmp_path)), ["good", "empty", "missing"])
    assert [file.name for file in files] == ["good"]


def test_a_link_that_loops_is_one_of_the_names_and_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"x")
    (tmp_path / "zz").symlink_to("zz")
    assert FolderListing(str(tmp_path)).names() == ("w", "zz")


def test_a_shard_that_loops_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "w").symlink_to("w")
    here = FolderListing(str(tmp_path))
    with pytest.raises(UnreadableFileError, match="leads back to itself") as caught:
        usable_files(here, here.names(), of="x", expected="y")
    assert caught.value.path == str(tmp_path / "w")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything: who is root is somebody else meanwhile."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_listed_is_an_error_that_says_what_lets_it() -> None:
    with TemporaryDirectory() as parent:  # a folder of pytest's is root's alone
        os.chmod(parent, 0o755)
        (Path(parent) / "model").mkdir(mode=0)
        with as_nobody(), pytest.raises(UnreadableFileError, match="cannot be listed") as caught:
            FolderListing(f"{parent}/model").names()
    assert "chmod u+rx" in str(caught.value.fix)
