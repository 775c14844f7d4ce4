# SPDX-License-Identifier: Apache-2.0
"""The client in Python and the native one ask the same place in the same name, wherever that was said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.files import write_tensors
from support.object_server import ObjectServer
from support.tensors import contents, noise

from weight_readers_runai.reader import StreamerReader

URI = "s3://models/model.safetensors"
MIB = 1 << 20
SIZE = 2 * MIB
COUNT = 8
"""Several for each thread of the library, which makes a client for each."""

CREDENTIALS = """
[one]
aws_access_key_id = ONE
aws_secret_access_key = secret
[other]
aws_access_key_id = OTHER
aws_secret_access_key = secret
"""


@pytest.fixture
def model(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tensors = {f"t{n}": ("U8", [SIZE], noise(SIZE, n)) for n in range(COUNT)}
    path = write_tensors(tmp_path / "model.safetensors", tensors)
    server.objects["models/model.safetensors"] = path.read_bytes()
    credentials = tmp_path / "credentials"
    credentials.write_text(CREDENTIALS)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    return path


def read(server: ObjectServer, model: Path, **options: Any) -> set[str]:
    """Who signed, of a load that is right: one tensor at a time, so that some threads begin late."""
    server.asked.clear()
    reader = StreamerReader(memory_limit=SIZE, **options)
    assert contents(StreamerReader().iter_weights([model])) == contents(reader.iter_weights([URI]))
    assert sum(each.sent for each in server.asked) >= COUNT * SIZE
    return {each.signer for each in server.asked}


def test_unsigned_requests_are_not_signed_though_there_are_keys(server: ObjectServer, model: Path) -> None:
    assert read(server, model, unsigned=True) == {""}
    assert read(server, model) == {"key"}


def test_a_profile_that_was_asked_for_signs_whatever_keys_the_environment_has(
    server: ObjectServer, model: Path
) -> None:
    assert read(server, model, profile="one") == {"ONE"}
    assert read(server, model, profile="other") == {"OTHER"}


def test_keys_of_the_environment_come_before_a_profile_that_it_names(
    server: ObjectServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "one")
    assert read(server, model) == {"key"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert read(server, model) == {"ONE"}


def test_loads_that_are_under_way_together_keep_their_names(server: ObjectServer, model: Path) -> None:
    """The native library keeps clients for all sessions, told apart by keys, endpoint and region."""
    for name in ("one", "other"):
        server.objects[f"models/{name}.safetensors"] = model.read_bytes()
    loads = [
        StreamerReader(profile=name, memory_limit=SIZE).iter_weights([f"s3://models/{name}.safetensors"])
        for name in ("one", "other")
    ]
    assert sum(1 for _ in zip(*loads, strict=True)) == COUNT
    asked = {(each.key, each.signer) for each in server.asked}
    assert asked == {("models/one.safetensors", "ONE"), ("models/other.safetensors", "OTHER")}


FILES = {
    "the profile that counts": "[default]\nregion = eu-west-1\nendpoint_url = {}\n",
    "of S3 alone": "[default]\nregion = eu-west-1\nservices = mine\nendpoint_url = http://127.0.0.1:1\n"
    "[services mine]\ns3 =\n  endpoint_url = {}\n",
    "the profile asked for": "[profile one]\nregion = eu-west-1\nendpoint_url = {}\n",
}


@pytest.fixture
def no_variables(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)


@pytest.mark.parametrize("written", FILES)
@pytest.mark.usefixtures("no_variables")
def test_the_place_in_the_configuration_file_counts_for_both(
    server: ObjectServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    (tmp_path / "config").write_text(FILES[written].format(server.endpoint))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    server.region = "eu-west-1"
    profile = "one" if "asked" in written else None
    read(server, model, profile=profile)
    place = StreamerReader(profile=profile).place(URI)
    assert place["endpoint"] == f"{server.endpoint} (AWS's configuration file)"
    assert place["region"] == "eu-west-1 (AWS's configuration file)"


@pytest.mark.usefixtures("no_variables")
def test_an_endpoint_in_the_file_that_is_to_be_ignored_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert StreamerReader().place(URI)["endpoint"] == "the AWS endpoint of the region"
