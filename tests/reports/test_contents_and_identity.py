# SPDX-License-Identifier: Apache-2.0
"""Public reports about what is in the files: digests, names, dtypes, slices, aliases, empty weights."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import invoke
from support.files import floats, write_index, write_safetensors, write_sharded, write_tensors

import weight_readers
from weight_readers import (
    CheckpointError,
    DigestMismatchError,
    EmptyWeightsError,
    ForeignContentError,
    MissingTensorError,
    NoSuitableReaderError,
    TargetMismatchError,
)
from weight_readers_loader import open_checkpoint


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


class TestB009AFlippedBit:
    @pytest.fixture
    def shards(self, tmp_path: Path) -> list[Path]:
        return write_sharded(tmp_path / "model", 2)

    @pytest.fixture
    def manifest(self, tmp_path: Path, shards: list[Path]) -> Path:
        path = tmp_path / "SHA256SUMS"
        path.write_text("".join(f"{sha256(shard)}  {shard.name}\n" for shard in shards))
        return path

    def test_is_not_seen_without_a_digest_and_that_is_said(self, shards: list[Path]) -> None:
        flip_last_bit(shards[1])
        assert open_checkpoint(shards[0].parent).state_dict().keys() == {"t1", "t2"}
        done = invoke("verify", shards[0].parent)
        assert (done.exit_code, done.stderr) == (0, "")
        assert "contents: not verified; pass --manifest FILE with their digests" in done.stdout

    def test_is_found_by_a_manifest_which_names_the_file_and_both_digests(
        self, shards: list[Path], manifest: Path
    ) -> None:
        right = sha256(shards[1])
        assert invoke("verify", shards[0].parent, "--manifest", manifest).exit_code == 0
        flip_last_bit(shards[1])
        done = invoke("verify", shards[0].parent, "--manifest", manifest, "--json")
        assert done.exit_code == 1
        (problem,) = json.loads(done.stdout)["errors"]
        assert (problem["error"], problem["path"]) == (DigestMismatchError.__name__, str(shards[1]))
        assert right in problem["expected"]
        assert sha256(shards[1]) in problem["found"]

    def test_stops_a_load_that_was_asked_to_compare(self, shards: list[Path], manifest: Path) -> None:
        assert invoke("load", shards[0].parent, "--manifest", manifest).exit_code == 0
        flip_last_bit(shards[1])
        assert invoke("load", shards[0].parent).exit_code == 0
        done = invoke("load", shards[0].parent, "--manifest", manifest)
        assert done.exit_code == 1
        assert str(shards[1]) in done.stderr

    def test_is_found_by_the_name_of_a_blob_in_the_cache(self, tmp_path: Path) -> None:
        content = write_tensors(tmp_path / "x", {"w": ("F32", [1], floats(1))})
        repo = tmp_path / "models--o--n"
        blob = repo / "blobs" / sha256(content)
        blob.parent.mkdir(parents=True)
        blob.write_bytes(content.read_bytes())
        snapshot = repo / "snapshots" / "0123456789"
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob.name}")
        done = invoke("verify", snapshot, "--sha256")
        assert (done.exit_code, "contents: sha256 right for 1 file" in done.stdout) == (0, True)
        assert "pass --sha256" in invoke("verify", snapshot).stdout
        flip_last_bit(blob)
        done = invoke("verify", snapshot, "--sha256")
        assert done.exit_code == 1
        assert str(snapshot / "model.safetensors") in done.stderr
        assert f"sha256 {blob.name} (name of its blob in the cache)" in done.stderr

    def test_is_found_by_the_pointers_of_a_clone_without_git_lfs(self, tmp_path: Path, shards: list[Path]) -> None:
        clone = tmp_path / "clone"
        clone.mkdir()
        for shard in shards:
            size = shard.stat().st_size
            text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(shard)}\nsize {size}\n"
            (clone / shard.name).write_text(text)
        assert invoke("verify", shards[0].parent, "--manifest", clone).exit_code == 0
        flip_last_bit(shards[0])
        done = invoke("verify", shards[0].parent, "--manifest", clone)
        assert done.exit_code == 1
        assert f"git-lfs pointer {clone / shards[0].name}" in done.stderr

    def test_with_nothing_to_compare_the_question_fails(self, shards: list[Path]) -> None:
        done = invoke("verify", shards[0].parent, "--sha256")
        assert done.exit_code == 1
        assert "contents: not verified: there is no digest for any file to verify against" in done.stdout
        assert "Pass --manifest FILE" in done.stderr

    def test_a_file_that_the_manifest_lacks_is_named(self, shards: list[Path], manifest: Path) -> None:
        manifest.write_text(manifest.read_text().splitlines()[0] + "\n")
        done = invoke("verify", shards[0].parent, "--manifest", manifest)
        assert done.exit_code == 1
        assert f"no digest to verify {shards[1].name} against" in done.stderr
        assert "contents: sha256 right for 1 file" in done.stdout

    @pytest.mark.parametrize("text", ["", "hello\n", "abc  model-00001-of-00002.safetensors\n", "\ufeff\n# nothing\n"])
    def test_a_malformed_manifest_is_refused_and_says_how_to_make_one(
        self, text: str, shards: list[Path], manifest: Path
    ) -> None:
        manifest.write_text(text, encoding="utf-8")
        done = invoke("verify", shards[0].parent, "--manifest", manifest)
        assert done.exit_code == 1
        assert "not a usable manifest" in done.stderr
        assert "sha256sum" in done.stderr


def _write_zip(path: Path, value: Any) -> None:
    torch.save(value, path)


def _write_legacy(path: Path, value: Any) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def _write_gguf(path: Path, value: Any) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))


def _write_safetensors(path: Path, value: Any) -> None:
    write_tensors(path, {"w": ("F32", [2], floats(1, 2))})


WRITERS: dict[str, Callable[[Path, Any], None]] = {
    "safetensors": _write_safetensors,
    "gguf": _write_gguf,
    "zip": _write_zip,
    "legacy": _write_legacy,
}
SUFFIXES = {".safetensors": "safetensors", ".gguf": "gguf", ".bin": "pt", ".pt": "pt"}


class Trap:
    """Unpickling it leaves a mark."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", WRITERS)
class TestB012NamesAndContentsCrosswise:
    """4 contents under 4 names: the right load or the right message."""

    def test_is_loaded_by_its_content_or_refused_with_both_named(
        self, content: str, suffix: str, tmp_path: Path
    ) -> None:
        path = tmp_path / f"model{suffix}"
        WRITERS[content](path, {"w": torch.tensor([1.0, 2.0])})
        form = content if content in ("safetensors", "gguf") else "pt"
        done = invoke("load", path)
        if form == "pt" and SUFFIXES[suffix] != "pt":
            with pytest.raises(ForeignContentError) as refused:
                open_checkpoint(path)
            assert SUFFIXES[suffix] in str(refused.value.expected)
            assert "pt (a zip or pickle of torch.save)" in str(refused.value.found)
            assert done.exit_code == 1
        elif form == "safetensors":
            assert open_checkpoint(path).get_tensor("w").tolist() == [1, 2]
            assert done.exit_code == 0
            assert (f"named as {SUFFIXES[suffix]} and its content is safetensors" in done.stdout) == (
                suffix != ".safetensors"
            )
        elif _has_reader(form):
            assert done.exit_code == 0
        else:
            with pytest.raises(NoSuitableReaderError, match=f"no installed weight reader fits format '{form}'"):
                open_checkpoint(path)
            assert done.exit_code == 1

    def test_no_command_runs_what_a_pickle_says(self, content: str, suffix: str, tmp_path: Path) -> None:
        path, marker = tmp_path / f"model{suffix}", tmp_path / "marker"
        WRITERS[content](path, {"w": Trap(marker)})
        for command in ("explain", "inspect", "verify", "load"):
            invoke(command, path)
        with_pickle = content in ("zip", "legacy")
        if with_pickle:
            with pytest.raises((CheckpointError, NoSuitableReaderError)):
                open_checkpoint(path).state_dict()
        assert not marker.exists()


def _has_reader(form: str) -> bool:
    return any(form in weight_readers.describe_reader(n).formats for n in weight_readers.available_reader_names())


def test_the_trap_of_b012_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


class TestB015AnErrorKeepsItsTypeWhateverItsText:
    TEXT = "unexpected end of file"

    def test_a_tensor_of_that_name_that_is_not_there(self, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        with pytest.raises(MissingTensorError, match=self.TEXT):
            open_checkpoint(tmp_path).get_tensor(self.TEXT)

    def test_an_index_that_promises_a_tensor_of_that_name(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "a.safetensors", {"t": ("F32", [1], floats(1))})
        write_index(tmp_path, {"t": "a.safetensors", self.TEXT: "a.safetensors"})
        with pytest.raises(MissingTensorError, match=self.TEXT):
            open_checkpoint(tmp_path)
        (problem,) = json.loads(invoke("load", tmp_path, "--json").stdout)["errors"]
        assert (problem["error"], problem["tensor"]) == ("MissingTensorError", self.TEXT)


class TestB031ASharedNameIsOnlyInTheMetadata:
    @staticmethod
    def save(folder: Path, **metadata: str) -> Path:
        write_tensors(folder / "model.safetensors", {"embed": ("F32", [2], floats(1, 2))}, **metadata)
        return folder

    @pytest.mark.parametrize(
        "metadata",
        [
            {"head": "embed"},
            {"head": "tied", "tied": "embed"},
            {"head": "embed", "format": "pt", "gone": "nowhere", "a": "b", "b": "a"},
        ],
    )
    def test_it_is_shown_and_resolved_only_when_asked(self, metadata: dict[str, str], tmp_path: Path) -> None:
        checkpoint = open_checkpoint(self.save(tmp_path, **metadata))
        assert checkpoint.aliases["head"] == "embed"
        assert set(checkpoint.aliases.values()) == {"embed"}
        assert checkpoint.aliases.keys() <= {"head", "tied"}
        assert checkpoint.state_dict().keys() == {"embed"}
        resolved = checkpoint.state_dict(resolve_aliases=True)
        assert resolved["head"].tolist() == [1, 2]
        done = invoke("inspect", tmp_path)
        assert "alias: head is stored as embed" in done.stdout

    @pytest.mark.parametrize("metadata", [{"head": "nowhere"}, {"head": "tail", "tail": "head"}, {"head": "head"}])
    def test_an_alias_that_leads_nowhere_is_metadata_and_the_name_is_missing(
        self, metadata: dict[str, str], tmp_path: Path
    ) -> None:
        checkpoint = open_checkpoint(self.save(tmp_path, **metadata))
        assert checkpoint.aliases == {}
        target = {"embed": torch.zeros(2), "head": torch.zeros(2)}
        with pytest.raises(TargetMismatchError) as refused:
            checkpoint.load_into(target, resolve_aliases=True)
        assert refused.value.missing == ("head",)
        assert f"head={metadata['head']}" in invoke("inspect", tmp_path).stdout

    def test_a_load_that_lacks_the_name_points_at_the_alias(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(self.save(tmp_path, head="embed"))
        with pytest.raises(
            TargetMismatchError, match=r"resolve_aliases=True \(--aliases\) finds head under another name"
        ):
            checkpoint.load_into({"embed": torch.zeros(2), "head": torch.zeros(2)})


INDEXES: list[Any] = [
    1, -1, slice(None, None, 2), slice(5, 2), (slice(None), 1), (Ellipsis, 0), slice(2, 100), slice(-100, 2),
    slice(4, 9), (slice(1, 3), slice(None, None, 2)), (-1, -1), slice(None), (slice(3, 1), 2),
]  # fmt: skip


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_b042_a_slice_of_a_file_is_what_torch_makes_of_the_tensor(index: Any, tmp_path: Path) -> None:
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    write_tensors(tmp_path / "model.safetensors", {"x": ("F32", [4, 6], floats(*range(24)))})
    found = open_checkpoint(tmp_path).get_slice("x")[index]
    assert whole[index].shape == found.shape
    assert torch.equal(whole[index], found)


class TestB043Bfloat16StaysBfloat16:
    BYTES = struct.pack("<2H", 0x7E96, 0x3F81)  # about 1e38, which float16 cannot hold, and 1 + 2^-7

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        write_tensors(tmp_path / "model.safetensors", {"w": ("BF16", [2], self.BYTES)})
        return tmp_path

    @pytest.mark.parametrize("owned", [False, True])
    def test_the_bytes_are_those_of_the_file(self, folder: Path, owned: bool) -> None:
        tensor = open_checkpoint(folder).state_dict(owned=owned)["w"]
        assert torch.bfloat16 == tensor.dtype
        assert tensor.view(torch.uint8).numpy().tobytes() == self.BYTES

    def test_another_dtype_is_refused_unless_asked_for_and_then_counted(self, folder: Path) -> None:
        target = {"w": torch.zeros(2)}
        with pytest.raises(TargetMismatchError, match=r"cast=True \(--cast\) converts dtypes"):
            open_checkpoint(folder).load_into(target)
        assert target["w"].tolist() == [0, 0]
        report = open_checkpoint(folder).load_into(target, cast=True)
        assert report.cast == {"bfloat16 -> float32": 1}
        assert target["w"].tolist() == [struct.unpack("<f", b"\0\0\x96\x7e")[0], 1 + 2**-7]
        assert "cast:       1 x bfloat16 -> float32" in str(report)


class TestB045PlaceholdersWereSaved:
    @staticmethod
    def save(folder: Path, *, empty: int, full: int) -> Path:
        tensors = {f"layers.{i}.weight": ("F32", [0], b"") for i in range(empty)}
        tensors |= {f"more.{i}.weight": ("F32", [1], floats(i)) for i in range(full)}
        write_tensors(folder / "model.safetensors", {**tensors, "norm.bias": ("F32", [1], floats(0))})
        return folder

    def test_ten_of_ten_are_refused_and_the_likely_cause_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(EmptyWeightsError, match="all 10 weights have zero elements: this looks like a ZeRO-3 save"):
            open_checkpoint(self.save(tmp_path, empty=10, full=0))
        done = invoke("inspect", tmp_path)
        assert (done.exit_code, "layers.9.weight" in done.stdout) == (1, True)

    def test_some_of_ten_are_a_notice(self, tmp_path: Path) -> None:
        (notice,) = open_checkpoint(self.save(tmp_path, empty=3, full=7)).notices
        assert notice.startswith("3 of 10 weights without elements")
        assert "layers.2.weight" in notice

    def test_a_file_without_weights_is_no_such_save(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "model.safetensors", {"__metadata__": {"format": "pt"}})
        assert open_checkpoint(tmp_path).state_dict() == {}
