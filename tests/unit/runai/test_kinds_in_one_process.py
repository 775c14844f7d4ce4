# SPDX-License-Identifier: Apache-2.0
"""The native library has one client of a store per process, so a second kind of store is refused, never mistaken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import gcs, rclone
from support.files import write_tensors

pytest.importorskip("runai_model_streamer_gcs")
pytest.importorskip("runai_model_streamer_s3")

READ = """
import sys
from weight_readers import CheckpointError
from weight_readers_runai.reader import StreamerReader
for uri in sys.argv[1:]:
    try:
        print(*(f"{name} {bytes(values.numpy()).decode()}" for name, values in StreamerReader().iter_weights([uri])))
    except CheckpointError as error:
        print(type(error).__name__, error.path, error.what, error.fix, sep="|")
"""
VENDORS_OWN = """
import sys
from runai_model_streamer import SafetensorsStreamer
with SafetensorsStreamer() as streamer:
    streamer.stream_file(sys.argv.pop(1))
    print(*(f"{name} {bytes(values.numpy()).decode()}" for name, values in streamer.get_tensors()))
"""
S3, GS = "s3://models/m.safetensors", "gs://models/m.safetensors"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two stores with a bucket of one name, and an object of one name that has other bytes in each."""
    roots = {}
    for scheme, content in (("s3", b"from S3"), ("gs", b"from GS")):
        roots[scheme] = tmp_path_factory.mktemp(scheme)
        write_tensors(roots[scheme] / "models" / "m.safetensors", {"x": ("U8", [7], content)})
    with rclone.served(roots["s3"]) as s3, gcs.served(roots["gs"]) as google:
        yield {
            "PATH": str(Path(sys.executable).parent),
            "AWS_ENDPOINT_URL": s3,
            "AWS_ACCESS_KEY_ID": rclone.KEY,
            "AWS_SECRET_ACCESS_KEY": rclone.SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": google,
            "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS": "true",
        }


def said(environment: dict[str, str], *uris: str, before: str = "") -> list[str]:
    """What a process says that reads ``uris`` one after the other."""
    command = [sys.executable, "-c", before + READ, *uris]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def refusal(uri: str, first: str) -> str:
    scheme = uri.split(":")[0]
    return (
        f"UnreadableFileError|{uri}|this process streamed from {first}:// before, and the native client would look "
        f"for it there|Load from {scheme}:// in a process of its own"
    )


@pytest.mark.parametrize(
    ("first", "second", "content"), [(S3, GS, "x from S3"), (GS, S3, "x from GS")], ids=["s3 first", "gs first"]
)
def test_the_second_kind_of_store_is_refused_and_the_first_goes_on(
    environment: dict[str, str], first: str, second: str, content: str
) -> None:
    expected = [content, refusal(second, first[:2]), content]
    assert expected == said(environment, first, second, first)


def test_a_session_of_the_backend_itself_counts(environment: dict[str, str]) -> None:
    assert ["x from S3", refusal(GS, "s3")] == said(environment, S3, GS, before=VENDORS_OWN)
