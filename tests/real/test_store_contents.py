# SPDX-License-Identifier: Apache-2.0
"""Contents and rights in moto's S3: checksums that a store keeps, uploads in parts, keys that are not right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.files import write_tensors
from support.moto_server import Moto, moto
from support.object_server import only_loopback
from support.tensors import noise

from weight_readers import UnreadableFileError
from weight_readers_loader.cli import cli
from weight_readers_runai.reader import StreamerReader

MIB = 1 << 20
URI = "s3://models/llama/model.safetensors"
KEY = "llama/model.safetensors"


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    with moto() as running:
        running.client("s3").create_bucket(Bucket="models")
        yield running


@pytest.fixture
def content(server: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    only_loopback(monkeypatch, server.endpoint)
    data = {f"t{n}": ("U8", [3 * MIB], noise(3 * MIB, n)) for n in range(4)}
    return write_tensors(tmp_path / "model.safetensors", data).read_bytes()


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["verify", URI, *map(str, arguments)])


@pytest.mark.parametrize("algorithm", ["SHA256", "CRC64NVME", "SHA1", "CRC32C", "CRC32"])
def test_the_checksum_that_the_store_keeps_is_compared_with_the_bytes_that_arrive(
    server: Moto, content: bytes, algorithm: str
) -> None:
    server.client("s3").put_object(Bucket="models", Key=KEY, Body=content, ChecksumAlgorithm=algorithm)
    done = verify("--sha256")
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"contents: {algorithm.lower()} right for 1 file" in done.stdout


def test_a_checksum_of_parts_is_said_and_not_guessed(server: Moto, content: bytes) -> None:
    s3 = server.client("s3")
    upload = s3.create_multipart_upload(Bucket="models", Key=KEY, ChecksumAlgorithm="SHA256")["UploadId"]
    target = {"Bucket": "models", "Key": KEY, "UploadId": upload}
    parts = []
    for number, data in ((1, content[: 6 * MIB]), (2, content[6 * MIB :])):
        part = s3.upload_part(**target, PartNumber=number, Body=data, ChecksumAlgorithm="SHA256")
        parts.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]})
    s3.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})
    done = verify("--sha256", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["contents"]["without_digest"] == ["model.safetensors"]
    assert "one of its parts (a multipart upload), not of the whole" in done.stderr


def test_a_manifest_is_compared_whatever_the_store_keeps(server: Moto, content: bytes, tmp_path: Path) -> None:
    server.client("s3").put_object(Bucket="models", Key=KEY, Body=content)
    for digest, code in ((hashlib.sha256(content).hexdigest(), 0), ("0" * 64, 1)):
        (tmp_path / "SUMS").write_text(f"{digest}  model.safetensors\n")
        done = verify("--manifest", tmp_path / "SUMS")
        assert (done.exit_code, "the content is not what it should be" in done.stderr) == (code, code == 1)


def test_keys_that_are_not_known_or_may_not_read_are_told_apart(
    server: Moto, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client("s3").put_object(Bucket="models", Key=KEY, Body=content)
    iam = server.client("iam")
    iam.create_user(UserName="reader")
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    server.check_keys(after=0)
    try:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOTKNOWN")
        _is_denied("the store does not know the access key")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        _is_denied("the secret key does not fit the access key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        _is_denied(r"access denied: s3://.*HTTP 403 AccessDenied")
    finally:
        server.check_keys(after=1_000_000)


def _is_denied(words: str) -> None:
    with pytest.raises(UnreadableFileError, match=words) as caught:
        StreamerReader().read_meta([URI])
    assert (caught.value.path, "AWS_ACCESS_KEY_ID" in str(caught.value)) == (URI, True)
