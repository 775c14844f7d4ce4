# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from weight_readers import BadIndexError, DigestMismatchError, UnreadableFileError
from weight_readers_loader.digests import Digest, references, verify
from weight_readers_loader.resolve import LayoutFile

ONE, TWO = hashlib.sha256(b"one").hexdigest(), hashlib.sha256(b"two").hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> list[LayoutFile]:
    found = []
    for name, content in (("a.safetensors", b"one"), ("sub/b.safetensors", b"two")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        found.append(LayoutFile(name=name, path=str(path), size=3))
    return found


def manifest(folder: Path, text: str) -> Path:
    path = folder / "SUMS"
    path.write_bytes(text.encode())
    return path


def digests(files: list[LayoutFile], path: Path) -> dict[str, str]:
    return {name: digest.value for name, digest in references(files, path).items()}


@pytest.mark.parametrize(
    "text",
    [
        f"{ONE}  a.safetensors\n{TWO}  sub/b.safetensors\n",
        f"{ONE} *a.safetensors\r\n{TWO} *sub/b.safetensors\r\n",
        f"\ufeff# made by hand\n\n{ONE.upper()}\t./a.safetensors\n{TWO}  ./sub/b.safetensors",
        f"SHA256 (a.safetensors) = {ONE}\nSHA256 (sub/b.safetensors) = {TWO}\n",
        f"{ONE}  /srv/model/a.safetensors\n{TWO}  /srv/model/sub/b.safetensors\n{ONE}  /srv/model/README.md\n",
        f"{ONE}  a.safetensors\n{ONE}  a.safetensors\n{TWO}  sub/b.safetensors\n",
    ],
)
def test_every_usual_form_of_a_manifest_is_read(text: str, files: list[LayoutFile], tmp_path: Path) -> None:
    assert digests(files, manifest(tmp_path, text)) == {"a.safetensors": ONE, "sub/b.safetensors": TWO}


def test_a_file_in_a_folder_is_not_taken_for_one_of_the_same_name_above(
    files: list[LayoutFile], tmp_path: Path
) -> None:
    assert digests(files, manifest(tmp_path, f"{ONE}  b.safetensors\n{ONE}  a.safetensors\n")) == {"a.safetensors": ONE}


def test_a_name_with_a_backslash_or_a_line_break_is_escaped_as_sha256sum_does(tmp_path: Path) -> None:
    name = "a\\b\nc.safetensors"
    file = LayoutFile(name=name, path=str(tmp_path / "x"), size=1)
    assert digests([file], manifest(tmp_path, f"\\{ONE}  a\\\\b\\nc.safetensors\n")) == {name: ONE}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "none"),
        ("# only this\n", "none"),
        ("hello\n", "line 1: 'hello'"),
        (f"{ONE[:-1]}  a.safetensors\n", "line 1"),
        (f"{ONE}  a.safetensors\n{TWO}  a.safetensors\n", "another one in line 2"),
        (f"{ONE}  x/a.safetensors\n{TWO}  y/a.safetensors\n", "several"),
    ],
)
def test_what_is_no_manifest_or_contradicts_itself_is_refused(
    text: str, found: str, files: list[LayoutFile], tmp_path: Path
) -> None:
    with pytest.raises(BadIndexError, match="not a usable manifest") as refused:
        references(files, manifest(tmp_path, text))
    assert found in str(refused.value.found)


def test_a_manifest_that_is_not_text_is_refused(files: list[LayoutFile], tmp_path: Path) -> None:
    path = tmp_path / "SUMS"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnreadableFileError):
        references(files, path)


def test_a_folder_without_pointers_is_refused(files: list[LayoutFile], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadIndexError):
        references(files, tmp_path / "empty")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_one_pointer_stands_for_one_file_only(newline: str, files: list[LayoutFile], tmp_path: Path) -> None:
    lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{ONE}", "size 3", "")
    path = manifest(tmp_path, newline.join(lines))
    assert digests(files[:1], path) == {"a.safetensors": ONE}
    with pytest.raises(BadIndexError, match="one pointer for each file"):
        references(files, path)


def test_only_blobs_of_a_cache_that_are_named_by_a_sha256_count(tmp_path: Path) -> None:
    blobs, elsewhere = tmp_path / "blobs", tmp_path / "other"
    for folder in (blobs, elsewhere):
        folder.mkdir()
        for name in (ONE, "a" * 40):
            (folder / name).write_bytes(b"one")
    links = []
    for number, target in enumerate((blobs / ONE, blobs / ("a" * 40), elsewhere / ONE)):
        link = tmp_path / f"{number}.safetensors"
        link.symlink_to(target)
        links.append(LayoutFile(name=link.name, path=str(link), size=3))
    assert list(references(links, None)) == ["0.safetensors"]


def test_right_wrong_unknown_and_unreadable_are_told_apart(files: list[LayoutFile], tmp_path: Path) -> None:
    gone = LayoutFile(name="gone", path=str(tmp_path / "gone"), size=1)
    stray = LayoutFile(name="stray", path=files[0].path, size=3)
    expected = {name: Digest(value=ONE, source="here") for name in ("a.safetensors", "sub/b.safetensors", "gone")}
    counted: list[int] = []
    found = verify([*files, gone, stray], expected, on_bytes=counted.append)
    assert (found.right, found.unknown) == (("a.safetensors",), ("stray",))
    assert [type(problem) for problem in found.problems] == [DigestMismatchError, UnreadableFileError]
    assert (ONE in str(found.problems[0]), TWO in str(found.problems[0])) == (True, True)
    assert sum(counted) == 6
