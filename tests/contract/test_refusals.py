# SPDX-License-Identifier: Apache-2.0
"""Files and arguments that are wrong: the same error from every entrance, before the first tensor."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.files import entry, floats, write_safetensors, write_tensors
from support.measure import nothing_left_open
from support.tensors import contents, tensor, write_shards

import weight_readers
from weight_readers import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointProblems,
    DuplicateTensorError,
    EmptyFileError,
    ForeignContentError,
    HeaderError,
    LfsPointerError,
    ShapeError,
    TensorLayoutError,
    TrailingBytesError,
    TruncatedFileError,
    UnknownDtypeError,
    UnreadableFileError,
    WeightReader,
)

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4974351112\n".encode()
SOUND = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}
BODY = floats(1, 2, 3, 4)
TWICE = b'{"a":%b,"a":%b}' % ((json.dumps(SOUND["a"]).encode(),) * 2)
Make = Callable[[Path], object]


def header(content: dict[str, object] | bytes, body: bytes = BODY, **options: int) -> Make:
    return lambda path: write_safetensors(path, content, body, **options)  # type: ignore[arg-type]


def content(data: bytes) -> Make:
    return lambda path: path.write_bytes(data)


def cut(count: int) -> Make:
    """A sound file without its last ``count`` bytes."""

    def make(path: Path) -> None:
        data = write_safetensors(path, SOUND, BODY).read_bytes()
        path.write_bytes(data[:-count])

    return make


CORPUS: dict[str, tuple[type[CheckpointError], Make]] = {
    "empty": (EmptyFileError, content(b"")),
    "seven bytes": (TruncatedFileError, content(b"\x40\0\0\0\0\0\0")),
    "a git-lfs pointer": (LfsPointerError, content(POINTER)),
    "a zip": (ForeignContentError, content(b"PK\x03\x04" + bytes(40))),
    "a pickle": (ForeignContentError, content(b"\x80\x02}q\x00." + bytes(40))),
    "GGUF": (ForeignContentError, content(b"GGUF" + bytes(40))),
    "one byte short": (TruncatedFileError, cut(1)),
    "a whole tensor short": (TruncatedFileError, cut(8)),
    "cut in the header": (TruncatedFileError, cut(40)),
    "one byte too many": (TrailingBytesError, header(SOUND, BODY + b"\0")),
    "a length beyond reason": (HeaderError, content(struct.pack("<Q", 2**62) + b"{}" + bytes(20))),
    "not JSON": (HeaderError, header(b"{'a': 1}", b"")),
    "not UTF-8": (HeaderError, header(b'{"\xff":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', bytes(4))),
    "a list": (HeaderError, header(b"[1]", b"")),
    "no offsets": (HeaderError, header({"a": {"dtype": "F32", "shape": [1]}}, bytes(4))),
    "metadata of numbers": (HeaderError, header({"__metadata__": {"step": 7}, **SOUND})),
    "a name twice": (DuplicateTensorError, header(TWICE, bytes(8))),
    "an unknown dtype": (UnknownDtypeError, header({"a": entry("Q9_9", [2], 0, 8)}, bytes(8))),
    "a shape that overflows": (ShapeError, header({"a": entry("F32", [2**32, 2**32], 0, 0)}, b"")),
    "a shape that does not fill its range": (TensorLayoutError, header({"a": entry("F32", [3], 0, 8)}, bytes(8))),
    "a gap": (TensorLayoutError, header({**SOUND, "b": entry("F32", [2], 12, 20)}, bytes(20))),
    "an overlap": (TensorLayoutError, header({**SOUND, "b": entry("F32", [2], 4, 12)}, bytes(12))),
    "an end before the beginning": (TensorLayoutError, header({"a": entry("F32", [0], 8, 0)}, bytes(8))),
    "missing": (CheckpointNotFoundError, lambda path: None),
    "a dangling link": (CheckpointNotFoundError, lambda path: path.symlink_to("nowhere")),
    "a folder": (UnreadableFileError, lambda path: path.mkdir()),
    "a link to itself": (UnreadableFileError, lambda path: path.symlink_to(path)),
    "a named pipe": (UnreadableFileError, lambda path: os.mkfifo(path)),
}


@pytest.fixture(params=CORPUS.values(), ids=CORPUS)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[type[CheckpointError], Path]:
    kind, make = request.param
    path = tmp_path / "model-2.safetensors"
    make(path)
    return kind, path


def test_a_broken_file_has_one_error_from_every_entrance_before_the_first_tensor(
    reader: WeightReader, broken: tuple[type[CheckpointError], Path], tmp_path: Path
) -> None:
    kind, path = broken
    sound = write_tensors(tmp_path / "model-1.safetensors", {"first": tensor("F32", 2)})
    errors = []
    with nothing_left_open():
        for enter in (reader.read_meta, lambda files: next(iter(reader.iter_weights(files)))):
            with pytest.raises(CheckpointError) as caught:
                enter([sound, path])
            errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert (kind, True) == (errors[0][0], str(path) in errors[0][1])


def test_a_filter_does_not_hide_a_broken_file(reader: WeightReader, tmp_path: Path) -> None:
    sound = write_tensors(tmp_path / "model-1.safetensors", {"first": tensor("F32", 2)})
    cut(1)(tmp_path / "model-2.safetensors")
    with pytest.raises(TruncatedFileError):
        next(iter(reader.iter_weights([sound, tmp_path / "model-2.safetensors"], key_filter="first".__eq__)))


def test_all_broken_files_are_named_at_once(reader: WeightReader, tmp_path: Path) -> None:
    paths = [tmp_path / f"model-{n}.safetensors" for n in (1, 2)]
    paths[0].write_bytes(POINTER)
    with pytest.raises(CheckpointProblems) as caught:
        next(iter(reader.iter_weights(paths)))
    assert [LfsPointerError, CheckpointNotFoundError] == [type(problem) for problem in caught.value.problems]


def test_a_reader_recovers_once_the_file_is_mended(reader: WeightReader, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    cut(1)(path)
    with pytest.raises(TruncatedFileError):
        reader.read_meta([path])
    write_safetensors(path, SOUND, BODY)
    assert [values.tolist() for _, values in reader.iter_weights([path])] == [[1, 2], [3, 4]]


def test_a_file_that_was_replaced_is_read_anew(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("F32", [1], floats(1))})
    assert list(contents(reader.iter_weights([path]))) == ["a"]
    write_tensors(tmp_path / "new", {"b": ("F32", [1], floats(2))}).replace(path)
    assert [(name, values.tolist()) for name, values in reader.iter_weights([path])] == [("b", [2.0])]


@pytest.mark.parametrize("spell", [str, Path, lambda path: os.path.relpath(path)], ids=["str", "Path", "relative"])
def test_paths_may_be_text_or_path_objects(
    reader: WeightReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spell: Callable[[Path], str | Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [spell(path) for path in write_shards(tmp_path, 2)]
    assert len(list(reader.iter_weights(files))) == 4
    assert [os.fspath(file) for file in files] == [file.path for file in reader.read_meta(files).files]
    assert len(list(reader.iter_weights(tuple(files)))) == 4


@pytest.mark.parametrize("spell", [str, Path])
def test_a_bare_path_is_refused(reader: WeightReader, tmp_path: Path, spell: Callable[[Path], str | Path]) -> None:
    bare = spell(write_shards(tmp_path, 1)[0])
    for enter in (reader.read_meta, reader.iter_weights):
        with pytest.raises(TypeError, match="files must be a sequence of paths"):
            enter(bare)  # type: ignore[arg-type]


def test_no_files_at_all_are_refused(reader: WeightReader) -> None:
    for enter in (reader.read_meta, reader.iter_weights):
        with pytest.raises(ValueError, match="files is empty"):
            enter([])


@pytest.mark.parametrize("again", ["the same path", "a link"])
def test_the_same_file_twice_is_refused(reader: WeightReader, tmp_path: Path, again: str) -> None:
    path = write_shards(tmp_path, 1)[0]
    other = path
    if again == "a link":
        other = tmp_path / "other.safetensors"
        other.symlink_to(path)
    for enter in (reader.read_meta, reader.iter_weights):
        with pytest.raises(DuplicateTensorError):
            enter([path, other])


def test_a_name_in_two_files_is_refused(reader: WeightReader, tmp_path: Path) -> None:
    paths = [write_tensors(tmp_path / f"{n}.safetensors", {"x": tensor("U8", n)}) for n in (1, 2)]
    with pytest.raises(DuplicateTensorError) as caught:
        reader.iter_weights(paths)
    assert ("x", str(paths[1])) == (caught.value.tensor, caught.value.path)


def test_a_shard_without_permission_is_refused(reader: WeightReader, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    shards = write_shards(tmp_path, 2)
    shards[1].chmod(0)
    with pytest.raises(UnreadableFileError) as caught:
        next(iter(reader.iter_weights(shards)))
    assert str(shards[1]) == caught.value.path


def test_errors_survive_the_way_to_another_process(reader: WeightReader, tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "m.safetensors"
    cut(1)(path)
    with pytest.raises(weight_readers.CheckpointError) as caught:
        reader.read_meta([path])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(caught.value), str(caught.value)) == (type(again), str(again))
