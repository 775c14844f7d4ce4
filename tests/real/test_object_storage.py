# SPDX-License-Identifier: Apache-2.0
"""A checkpoint from rclone's S3, which checks signatures, through the command and in Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files import write_index, write_tensors
from support.object_server import only_loopback
from support.rclone import served
from support.tensors import contents, noise

from weight_readers import CheckpointNotFoundError, TensorSlice, UnreadableFileError
from weight_readers_loader import open_checkpoint
from weight_readers_runai.reader import StreamerReader

MIB = 1 << 20


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``models/big``: 2 shards of 12 tensors of 1 MiB each, with an index."""
    root = tmp_path_factory.mktemp("s3")
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = {}
    for number, name in enumerate(names):
        tensors = {f"s{number}.t{n}": ("U8", [1024, 1024], noise(MIB, (number, n))) for n in range(12)}
        write_tensors(root / "models" / "big" / name, tensors)
        index |= dict.fromkeys(tensors, name)
    write_index(root / "models" / "big", index, total_size=24 * MIB)
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


def test_a_wrong_secret_is_access_denied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UnreadableFileError, match="access denied"):
        StreamerReader().read_meta(["s3://models/big/model-00001-of-00002.safetensors"])


def test_missing_objects_and_buckets_are_not_found(folder: Path) -> None:
    for uri in ("s3://models/none", "s3://none/big"):
        with pytest.raises(CheckpointNotFoundError):
            open_checkpoint(uri)
