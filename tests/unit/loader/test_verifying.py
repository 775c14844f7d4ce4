# SPDX-License-Identifier: Apache-2.0
"""Verification in one pass with a load: digests of the bytes that arrive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from support.commands import document, invoke
from support.files import write_index, write_safetensors
from support.object_server import ObjectServer, only_loopback
from torch import nn
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import CheckpointProblems, ConfigError, DigestMismatchError, TensorSlice
from weight_readers_loader import Checkpoint, LoadConfig, LoadReport, open_checkpoint
from weight_readers_loader.adapters import Prefix
from weight_readers_loader.distributed import open_distributed
from weight_readers_loader.verifier import Verifier

READERS = ("safetensors", "threaded", "runai_streamer")
NAMES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards with two tensors of 1 MiB and one of three bytes each, so that some lie unaligned."""
    folder = tmp_path / "model"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for number, name in enumerate(NAMES):
        tensors = {f"{number}.odd": torch.arange(3, dtype=torch.uint8)}
        for letter in "ab":
            tensors[f"{number}.{letter}"] = torch.rand(512, 512, generator=generator)
        save_file(tensors, folder / name)
    write_index(folder, {n: name for name in NAMES for n in load_file(folder / name)})
    return folder


@pytest.fixture
def manifest(folder: Path) -> Path:
    path = folder.parent / "SUMS"
    path.write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in NAMES))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def header_bytes(folder: Path) -> int:
    return sum(8 + int.from_bytes((folder / name).read_bytes()[:8], "little") for name in NAMES)


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def existing(folder: Path) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(t) for shard in NAMES for name, t in load_file(folder / shard).items()}


def into_existing(checkpoint: Checkpoint, folder: Path, manifest: Path) -> LoadReport:
    return checkpoint.load_into(existing(folder), verify=manifest)


def as_state_dict(checkpoint: Checkpoint, folder: Path, manifest: Path) -> LoadReport:
    checkpoint.state_dict(verify=manifest)
    assert checkpoint.report is not None
    return checkpoint.report


Way = Callable[[Checkpoint, Path, Path], LoadReport]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", [into_existing, as_state_dict])
class TestOfAWholeCheckpoint:
    def test_right_files_are_counted_and_only_headers_are_read_besides(
        self, way: Way, reader: str, folder: Path, manifest: Path
    ) -> None:
        report = way(open_checkpoint(folder, reader=reader), folder, manifest)
        assert (report.verified_files, report.verify_bytes) == (2, header_bytes(folder))
        assert f"sha256 right for 2 files, {header_bytes(folder)} B read besides" in str(report)

    def test_a_flipped_bit_is_raised_with_file_and_both_digests(
        self, way: Way, reader: str, folder: Path, manifest: Path
    ) -> None:
        right = sha256(folder / NAMES[1])
        flip_last_bit(folder / NAMES[1])
        with pytest.raises(DigestMismatchError, match="the content is not what it should be") as raised:
            way(open_checkpoint(folder, reader=reader), folder, manifest)
        assert raised.value.path == str(folder / NAMES[1])
        assert right in str(raised.value.expected)
        assert sha256(folder / NAMES[1]) in str(raised.value.found)


@pytest.mark.parametrize("reader", ["safetensors", "threaded"])
def test_the_load_reads_no_more_with_verification_than_headers(reader: str, folder: Path, manifest: Path) -> None:
    def read_calls(verify: bool | Path) -> int:
        checkpoint, targets = open_checkpoint(folder, reader=reader), existing(folder)
        before = rchar()
        checkpoint.load_into(targets, verify=verify)
        return rchar() - before

    # A manifest has to be read too, and so has what /proc tells of memory, again and again.
    assert read_calls(manifest) - read_calls(False) < header_bytes(folder) + 64 * 1024 < MIB


def rchar() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_targets_that_were_written_are_named(folder: Path, manifest: Path) -> None:
    flip_last_bit(folder / NAMES[0])
    with pytest.raises(DigestMismatchError) as raised:
        open_checkpoint(folder, reader="threaded").load_into(existing(folder), verify=manifest)
    assert set(raised.value.written) == set(existing(folder))


@pytest.mark.parametrize("reader", ["safetensors", "threaded"])
def test_a_module_without_memory_stays_so_where_a_digest_is_wrong(reader: str, tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, tmp_path / "model.safetensors")
    sums = tmp_path / "SUMS"
    sums.write_text(f"{sha256(tmp_path / 'model.safetensors')}  model.safetensors\n")
    module = nn.Linear(3, 2, device="meta")
    open_checkpoint(tmp_path, reader=reader).load_into(module, verify=sums)
    assert module.weight.sum() == 6
    flip_last_bit(tmp_path / "model.safetensors")
    module = nn.Linear(3, 2, device="meta")
    with pytest.raises(DigestMismatchError):
        open_checkpoint(tmp_path, reader=reader).load_into(module, verify=sums)
    assert module.weight.is_meta
    assert module.bias.is_meta


def test_all_wrong_files_are_named(folder: Path, manifest: Path) -> None:
    for name in NAMES:
        flip_last_bit(folder / name)
    with pytest.raises(CheckpointProblems) as raised:
        open_checkpoint(folder).state_dict(verify=manifest)
    assert [problem.path for problem in raised.value.problems] == [str(folder / name) for name in NAMES]


class TestOfAPart:
    def test_the_rest_of_the_file_is_read_and_counted_and_other_files_are_left_alone(
        self, folder: Path, manifest: Path
    ) -> None:
        flip_last_bit(folder / NAMES[1])
        checkpoint = open_checkpoint(folder)
        checkpoint.state_dict(key_filter="0.b".__eq__, verify=manifest)
        assert checkpoint.report is not None
        rest = (folder / NAMES[0]).stat().st_size - MIB
        assert (checkpoint.report.verified_files, checkpoint.report.verify_bytes) == (1, rest)

    def test_a_flip_in_what_was_not_asked_for_counts(self, folder: Path, manifest: Path) -> None:
        flip_last_bit(folder / NAMES[1])  # of 1.odd: writers put bytes behind floats
        with pytest.raises(DigestMismatchError):
            open_checkpoint(folder).state_dict(key_filter="1.a".__eq__, verify=manifest)

    def test_of_a_slice_too(self, folder: Path, manifest: Path) -> None:
        checkpoint = open_checkpoint(folder)
        checkpoint.state_dict(slices={"0.a": TensorSlice(dim=0, start=0, stop=2)}, verify=manifest)
        assert checkpoint.report is not None
        assert checkpoint.report.verify_bytes == header_bytes(folder) + MIB


def test_tensors_that_adapters_rename_are_hashed_as_they_are_stored(folder: Path, manifest: Path) -> None:
    targets = {f"x.{name}": tensor for name, tensor in existing(folder).items()}
    report = open_checkpoint(folder, reader="threaded", adapters=[Prefix("x.")]).load_into(targets, verify=manifest)
    assert (report.verified_files, report.verify_bytes) == (2, header_bytes(folder))


def test_targets_that_are_converted_or_strided_are_hashed_as_they_are_stored(folder: Path, manifest: Path) -> None:
    cast = {name: tensor.double() for name, tensor in existing(folder).items()}
    assert open_checkpoint(folder).load_into(cast, cast=True, verify=manifest).verified_files == 2
    strided = {name: t.t() if t.dim() == 2 else t for name, t in existing(folder).items()}
    assert open_checkpoint(folder, reader="threaded").load_into(strided, verify=manifest).verified_files == 2


class TestOfOtherFormats:
    def test_of_torch_files_with_tied_and_strided_tensors(self, tmp_path: Path) -> None:
        tensor = torch.rand(64, 32)
        path = tmp_path / "pytorch_model.bin"
        torch.save({"embed": tensor, "head": tensor, "turned": torch.rand(8, 4).t(), "part": tensor[8:9]}, path)
        sums = tmp_path / "SUMS"
        sums.write_text(f"{sha256(path)}  {path.name}\n")
        open_checkpoint(tmp_path).state_dict(verify=sums)
        content = bytearray(path.read_bytes())
        content[content.index(tensor.numpy().tobytes())] ^= 1
        path.write_bytes(content)
        with pytest.raises(DigestMismatchError):
            open_checkpoint(tmp_path).state_dict(verify=sums)

    @pytest.mark.parametrize("dequantize", [None, "float32"])
    def test_of_gguf_files_packed_or_as_numbers(self, dequantize: str | None, tmp_path: Path) -> None:
        blocks = np.random.default_rng(0).integers(0, 100, 4 * 2 * 34, dtype=np.uint8).tobytes()
        tensors = {"fc.weight": (8, (4, 64), blocks), "fc.bias": (0, (3,), np.ones(3, np.float32).tobytes())}
        path = write_gguf(tmp_path / "tiny-Q8_0.gguf", tensors, {"general.architecture": "tiny"})
        sums = tmp_path / "SUMS"
        sums.write_text(f"{sha256(path)}  {path.name}\n")
        checkpoint = open_checkpoint(path, dequantize=dequantize)
        checkpoint.state_dict(verify=sums)
        assert checkpoint.report is not None
        delivered = 12 if dequantize else 12 + len(blocks)
        assert checkpoint.report.verify_bytes == path.stat().st_size - delivered
        content = bytearray(path.read_bytes())
        content[content.index(blocks)] ^= 1
        path.write_bytes(content)
        with pytest.raises(DigestMismatchError):
            open_checkpoint(path, dequantize=dequantize).state_dict(verify=sums)


class TestOfAStore:
    @pytest.fixture
    def server(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
        objects = {f"models/m/{path.name}": path.read_bytes() for path in folder.iterdir()}
        return ObjectServer(objects)

    def test_the_bytes_that_arrive_are_hashed(
        self, server: ObjectServer, folder: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with server.running() as running:
            only_loopback(monkeypatch, running.endpoint)
            report = open_checkpoint("s3://models/m").load_into(existing(folder), verify=manifest)
            assert (report.verified_files, report.verify_bytes) == (2, header_bytes(folder))
            name = f"models/m/{NAMES[0]}"
            server.objects[name] = server.objects[name][:-1] + b"\x7f"
            with pytest.raises(DigestMismatchError, match=f"s3://{name}"):
                open_checkpoint("s3://models/m").load_into(existing(folder), verify=manifest)

    def test_a_part_is_refused_before_it_is_read(
        self, server: ObjectServer, manifest: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with server.running() as running:
            only_loopback(monkeypatch, running.endpoint)
            checkpoint = open_checkpoint("s3://models/m")
            with pytest.raises(ValueError, match="verifying hashes whole files"):
                checkpoint.state_dict(key_filter="0.a".__eq__, verify=manifest)


class TestWhatIsRefused:
    def test_files_without_a_digest(self, folder: Path, manifest: Path) -> None:
        manifest.write_text(manifest.read_text().splitlines()[0] + "\n")
        with pytest.raises(ValueError, match=f"no digest to verify {NAMES[1]} against. Pass a manifest"):
            open_checkpoint(folder).state_dict(verify=manifest)

    def test_a_checkpoint_that_nobody_has_digests_of(self, folder: Path) -> None:
        with pytest.raises(ValueError, match="no digest to verify"):
            open_checkpoint(folder).load_into(existing(folder), verify=True)

    @pytest.mark.parametrize("verify", [1, b"SUMS"])
    def test_what_is_neither_a_flag_nor_a_path(self, verify: object, folder: Path) -> None:
        with pytest.raises(TypeError, match="verify must be True, False, or the path of a manifest"):
            open_checkpoint(folder).state_dict(verify=verify)  # type: ignore[arg-type]


def test_the_digest_of_the_hub_cache_is_compared_without_a_manifest(tmp_path: Path) -> None:
    content = write_safetensors(tmp_path / "x", {"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, b"ab")
    blob = tmp_path / "models--o--n" / "blobs" / sha256(content)
    blob.parent.mkdir(parents=True)
    content.rename(blob)
    snapshot = tmp_path / "models--o--n" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob.name}")
    done = invoke("load", snapshot, "--verify", "--json")
    assert (done.exit_code, json.loads(done.stdout)["report"]["verified_files"]) == (0, 1)
    flip_last_bit(blob)
    done = invoke("load", snapshot, "--verify")
    assert done.exit_code == 1
    assert f"sha256 {blob.name} (name of its blob in the cache)" in done.stderr


def test_bytes_that_a_reader_made_of_a_right_file_are_told_from_a_wrong_file(
    folder: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = Verifier.following

    def other_bytes(self: Verifier, names: list[str], targets: dict[str, torch.Tensor]) -> object:
        return give(self, names, {name: tensor + 1 for name, tensor in targets.items()})

    monkeypatch.setattr(Verifier, "following", other_bytes)
    with pytest.raises(CheckpointProblems) as raised:
        open_checkpoint(folder, reader="threaded").load_into(existing(folder), verify=manifest)
    assert "the bytes that arrived are not those of the file" in str(raised.value)
    assert "Delete" not in str(raised.value)


class TestVerifyAsConfigured:
    """`LoadConfig.verify`: of every load, from every layer, and of an iteration at its end."""

    def test_a_load_verifies_by_its_configuration_and_a_call_may_say_otherwise(
        self, folder: Path, manifest: Path
    ) -> None:
        checkpoint = open_checkpoint(folder, config=LoadConfig(verify=str(manifest)))
        assert checkpoint.load_into(existing(folder)).verified_files == 2
        assert checkpoint.load_into(existing(folder), verify=False).verified_files == 0
        flip_last_bit(folder / NAMES[1])
        with pytest.raises(DigestMismatchError):
            open_checkpoint(folder, config=LoadConfig(verify=str(manifest))).state_dict()

    def test_an_iteration_ends_with_the_error(self, folder: Path, manifest: Path) -> None:
        flip_last_bit(folder / NAMES[1])
        seen: list[str] = []
        with pytest.raises(DigestMismatchError, match=NAMES[1]):
            seen.extend(name for name, _ in open_checkpoint(folder).iter_weights(verify=manifest))
        assert len(seen) == 6
        assert len(list(open_checkpoint(folder).iter_weights())) == 6

    def test_a_variable_a_file_and_flags_reach_it_and_explain_says_which(
        self, folder: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WEIGHT_READERS_VERIFY", str(manifest))
        assert document(invoke("load", folder, "--json"))["report"]["verified_files"] == 2
        assert document(invoke("load", folder, "--no-verify", "--json"))["report"]["verified_files"] == 0
        said = f"option verify='{manifest}' "
        assert f"{said}(environment, WEIGHT_READERS_VERIFY)" in invoke("explain", folder).stdout
        assert f"{said}(--manifest)" in invoke("explain", folder, "--manifest", manifest).stdout
        monkeypatch.setenv("WEIGHT_READERS_VERIFY", "yes")
        assert "no digest to verify" in invoke("load", folder).stderr
        config = folder.parent / "c.toml"
        config.write_text("verify = false\n[stages.vae]\nverify = true\n")
        monkeypatch.delenv("WEIGHT_READERS_VERIFY")
        assert invoke("load", folder, "--config", config).exit_code == 0
        assert invoke("load", folder, "--config", config, "--stage", "vae").exit_code == 1

    def test_a_manifest_that_is_not_to_be_compared_is_wrong_usage(self, folder: Path, manifest: Path) -> None:
        assert invoke("load", folder, "--manifest", manifest, "--no-verify").exit_code == 2

    def test_ranks_that_read_no_whole_files_refuse_it(self, folder: Path) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            with pytest.raises(ConfigError, match=r"verify=True \(engine\): no rank reads whole files"):
                open_distributed(folder, how="slices", config=LoadConfig(verify=True))
        finally:
            dist.destroy_process_group()
