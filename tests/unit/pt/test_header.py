# SPDX-License-Identifier: Apache-2.0
"""What is said of a file before any tensor of it is read, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.measure import cached_bytes, evict
from unit.pt.torch_files import (
    MAGIC,
    SYSTEM,
    dumped,
    floats,
    legacy,
    newer,
    one_tensor,
    save,
    tensors,
    write_zip,
    zipped,
)

from weight_readers import (
    CheckpointError,
    CheckpointProblems,
    DuplicateTensorError,
    EmptyFileError,
    EmptyWeightsError,
    ForeignContentError,
    HeaderError,
    LfsPointerError,
    ShapeError,
    TensorLayoutError,
    TrailingBytesError,
    TruncatedFileError,
    UnsupportedDtypeError,
)
from weight_readers_pt.header import Header, scan_header
from weight_readers_pt.meta import read_meta


def sound(path: Path) -> Header:
    header, problems = scan_header(str(path))
    assert problems == ()
    return header


def error_of(path: Path) -> CheckpointError:
    _, problems = scan_header(str(path))
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize("is_legacy", [False, True])
def test_dtypes_shapes_and_offsets_are_those_that_torch_finds(tmp_path: Path, is_legacy: bool) -> None:
    saved = tensors() if is_legacy else tensors() | newer()
    path = save(tmp_path / "x.bin", saved, legacy=is_legacy)
    expected = torch.load(path, weights_only=True)
    found = sound(path).tensors
    assert list(expected) == list(found)
    content = path.read_bytes()
    for name, tensor in expected.items():
        meta = found[name]
        assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{meta.dtype}", meta.shape), name
        if tensor.is_contiguous():
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            assert raw == content[meta.offset : meta.offset + meta.nbytes], name


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_protocol_that_torch_takes_are_read(tmp_path: Path, protocol: int) -> None:
    path = save(tmp_path / "x.pt", {"w": torch.ones(3)}, pickle_protocol=protocol)
    assert sound(path).tensors["w"].shape == (3,)


def test_no_byte_of_a_tensor_is_read(tmp_path: Path) -> None:
    path = save(tmp_path / "x.bin", {f"w{i}": torch.zeros(1 << 18) for i in range(16)})
    evict(path)
    sound(path)
    # The directory and the pickle, and a page with the local header of each record.
    assert cached_bytes(path) < 40 * 4096


def test_file_meta_says_what_kind_of_file_it_is_and_what_is_no_tensor_in_it(tmp_path: Path) -> None:
    path = save(tmp_path / "x.bin", {"w": torch.zeros(100)})
    meta = sound(path).file_meta()
    assert (meta.format, meta.nbytes) == ("pt", path.stat().st_size)
    assert meta.header_bytes == path.stat().st_size - 400
    assert meta.metadata == {"container": "zip archive of torch"}
    assert meta.notices == ()


class TestNotices:
    def said(self, path: Path) -> str:
        return "\n".join(sound(path).notices)

    def test_names_of_one_tensor_are_told(self, tmp_path: Path) -> None:
        embed = torch.ones(4, 2)
        said = self.said(save(tmp_path / "x.bin", {"embed": embed, "other": torch.ones(1), "head": embed}))
        assert said == "x.bin: 1 tensor of more than one name, stored once: embed = head"

    def test_overlapping_views_are_told(self, tmp_path: Path) -> None:
        x = torch.arange(9.0)
        assert "1 tensor over the bytes of another: b" in self.said(save(tmp_path / "x.bin", {"a": x[:6], "b": x[3:]}))

    def test_a_view_that_was_saved_with_its_whole_storage_is_told_in_bytes(self, tmp_path: Path) -> None:
        said = self.said(save(tmp_path / "x.bin", {"view": torch.zeros(1_000_000)[:10]}))
        assert "3999960 bytes of 1 storage belong to no tensor" in said
        assert "view needs 40 of 4000000 bytes" in said

    def test_where_the_weights_were_found_and_what_is_beside_them_is_told(self, tmp_path: Path) -> None:
        said = self.said(save(tmp_path / "x.ckpt", {"epoch": 3, "state_dict": {"w": torch.ones(1), "note": "x"}}))
        assert "the weights are those under 'state_dict'" in said
        assert "2 entries beside the weights left out: epoch, note" in said

    def test_the_old_format_is_told_in_one_line(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.bin", {"w": torch.ones(3), "v": torch.ones(1)}, legacy=True)
        (line,) = sound(path).notices
        assert line.startswith("x.bin: of the format of torch before 1.6: ")
        assert line.endswith("tensors unaligned, copied in place of mapped")


@pytest.mark.parametrize("is_legacy", [False, True])
def test_a_file_cut_anywhere_is_one_error_that_names_it(tmp_path: Path, is_legacy: bool) -> None:
    whole = save(tmp_path / "x.bin", {"w": torch.ones(40), "v": torch.ones(2, 2)}, legacy=is_legacy).read_bytes()
    path = tmp_path / "cut.bin"
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        error = error_of(path)
        assert error.path == str(path), length
        if length > 8:
            assert isinstance(error, (TruncatedFileError, HeaderError)), (length, error)
    path.write_bytes(whole[:-1])
    assert isinstance(error_of(path), TruncatedFileError)
    assert "download" in str(error_of(path))


def test_bytes_after_the_last_storage_of_an_old_file_are_an_error(tmp_path: Path) -> None:
    path = save(tmp_path / "x.bin", {"w": torch.ones(3)}, legacy=True)
    path.write_bytes(path.read_bytes() + b"?")
    assert isinstance(error_of(path), TrailingBytesError)


def safetensors_bytes() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def tar_bytes() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    return written.getvalue()


@pytest.mark.parametrize(
    ("content", "kind", "found"),
    [
        (b"", EmptyFileError, "empty"),
        (safetensors_bytes(), ForeignContentError, "a safetensors file"),
        (b"GGUF" + bytes(20), ForeignContentError, "a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n", LfsPointerError, "git lfs pull"),
        (b"<!doctype html><html>", ForeignContentError, "an HTML page"),
        (b'{"error": "not found"}', ForeignContentError, "JSON text"),
        (gzip.compress(b"x"), ForeignContentError, "a gzip archive"),
        (tar_bytes(), ForeignContentError, "a tar archive"),
        (bytes(4096), ForeignContentError, "zero bytes"),
        (b"nothing at all", ForeignContentError, "the content is text"),
        (b"\x01\x02\xff nothing", ForeignContentError, "nothing that is known"),
    ],
)
def test_other_content_under_the_name_is_named(
    tmp_path: Path, content: bytes, kind: type[CheckpointError], found: str
) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    error = error_of(tmp_path / "x.bin")
    assert isinstance(error, kind)
    assert found in str(error)


def zip_of_documents(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", b"x")


@pytest.mark.parametrize(
    ("write", "kind", "said"),
    [
        (zip_of_documents, ForeignContentError, "a zip archive that torch.save did not write"),
        (lambda p: write_zip(p, {"data.pkl": b"N.", "constants.pkl": b"N."}), ForeignContentError, "TorchScript"),
        (lambda p: write_zip(p, {"data.pkl": one_tensor()}), HeaderError, "lacks the record data/0"),
        (lambda p: write_zip(p, {"data.pkl": one_tensor(), "byteorder": b"big"}), HeaderError, "byte order"),
        (lambda p: zipped(p, one_tensor(), **{"0": bytes(15)}), TensorLayoutError, "smaller than the storage"),
        (lambda p: zipped(p, b"\x80\x02garbage", **{"0": bytes(16)}), HeaderError, "pickle in the archive"),
        (
            lambda p: write_zip(p, {"data.pkl": one_tensor(), "data/0": bytes(16)}, compression=zipfile.ZIP_DEFLATED),
            HeaderError,
            "compressed",
        ),
        (lambda p: zipped(p, one_tensor(shape=(5,)), **{"0": bytes(16)}), TensorLayoutError, "past the end"),
        (lambda p: zipped(p, one_tensor(offset=1), **{"0": bytes(16)}), TensorLayoutError, "past the end"),
        (
            lambda p: zipped(p, one_tensor(shape=(2, 2), strides=(4, 1)), **{"0": bytes(16)}),
            TensorLayoutError,
            "past the end",
        ),
        (lambda p: zipped(p, one_tensor(offset=-1), **{"0": bytes(16)}), HeaderError, "no storage"),
        (lambda p: zipped(p, one_tensor(shape=(2, 2)), **{"0": bytes(16)}), HeaderError, "strides"),
        (lambda p: zipped(p, one_tensor(shape=(1.5,)), **{"0": bytes(16)}), HeaderError, "no whole numbers"),
        (
            lambda p: zipped(p, one_tensor(shape=(1 << 31, 1 << 31), strides=(0, 0)), **{"0": bytes(16)}),
            ShapeError,
            "no tensor can have",
        ),
        (lambda p: save(p, {}), EmptyWeightsError, "no tensor in it"),
        (lambda p: save(p, torch.ones(2)), ForeignContentError, "one tensor without a name"),
        (lambda p: save(p, [torch.ones(2)]), ForeignContentError, "list"),
        (lambda p: save(p, {"state": {0: {"m": torch.ones(1)}}, "param_groups": []}), ForeignContentError, "optimizer"),
        (lambda p: save(p, {"last_epoch": 3, "base_lrs": [0.1]}), ForeignContentError, "last_epoch, base_lrs"),
        (lambda p: save(p, {"gan": {"w": torch.ones(1)}}), ForeignContentError, "with tensors under gan"),
        (lambda p: save(p, {"w": torch.ones(2).to_sparse()}), UnsupportedDtypeError, "a sparse tensor"),
        (lambda p: save(p, {"w": torch.ones(2, dtype=torch.complex64).conj()}), UnsupportedDtypeError, "conjugated"),
        (lambda p: save(p, {"w": torch.ones(2, device="meta")}), UnsupportedDtypeError, "meta device"),
        (lambda p: p.write_bytes(dumped({"w": [1.0]})), ForeignContentError, "torch.save did not write"),
        (
            lambda p: p.write_bytes(b"".join(dumped(x) for x in (MAGIC, 1002, SYSTEM, {}, []))),
            HeaderError,
            "unknown version",
        ),
        (
            lambda p: p.write_bytes(
                b"".join(dumped(x) for x in (MAGIC, 1001, {**SYSTEM, "little_endian": False}, {}, []))
            ),
            HeaderError,
            "byte order",
        ),
        (lambda p: legacy(p, one_tensor()), HeaderError, "does not list"),
        (lambda p: p.write_bytes(b"".join(dumped(x) for x in (MAGIC, 1001, SYSTEM, {}, ["0"]))), HeaderError, "list"),
    ],
)
def test_a_file_that_is_wrong_in_itself_is_one_error(
    tmp_path: Path, write: Callable[[Path], Any], kind: type[CheckpointError], said: str
) -> None:
    write(tmp_path / "x.bin")
    error = error_of(tmp_path / "x.bin")
    assert isinstance(error, kind), error
    assert said in str(error)
    assert str(tmp_path / "x.bin") in str(error)


def test_a_sound_hand_made_archive_is_read(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.pt", one_tensor(), **{"0": floats(1, 2, 3, 4)})
    assert sound(path).tensors["w"].shape == (4,)
    assert torch.load(path, weights_only=True)["w"].tolist() == [1, 2, 3, 4]


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.pt", one_tensor(), **{"0": bytes(16), "1": bytes(16)})
    path.write_bytes(path.read_bytes().replace(b"archive/data/1", b"archive/data/0"))
    assert "two records of one name" in str(error_of(path))


class TestSets:
    def test_files_come_in_the_order_given_and_all_problems_at_once(self, tmp_path: Path) -> None:
        good = save(tmp_path / "1.bin", {"a": torch.ones(1)})
        bad = [tmp_path / "2.bin", tmp_path / "3.bin"]
        for path in bad:
            path.write_bytes(b"GGUF")
        with pytest.raises(CheckpointProblems) as caught:
            read_meta([str(good), *map(str, bad)])
        assert [problem.path for problem in caught.value.problems] == [str(path) for path in bad]
        assert [tensor.name for tensor in caught.value.partial] == ["a"]

    def test_one_name_in_two_files_is_an_error(self, tmp_path: Path) -> None:
        paths = [str(save(tmp_path / name, {"a": torch.ones(1)})) for name in ("1.bin", "2.bin")]
        with pytest.raises(DuplicateTensorError, match=r"also in .*1\.bin"):
            read_meta(paths)

    def test_a_file_given_twice_is_an_error(self, tmp_path: Path) -> None:
        path = save(tmp_path / "1.bin", {"a": torch.ones(1)})
        (tmp_path / "2.bin").symlink_to(path)
        with pytest.raises(DuplicateTensorError, match="the same file as"):
            read_meta([str(path), str(tmp_path / "2.bin")])
