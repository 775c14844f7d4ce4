# SPDX-License-Identifier: Apache-2.0
"""Commands on stores: the options of a reader reach every part of them, and doctor says which settings count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import invoke
from support.files import write_tensors
from support.object_server import ObjectServer, only_loopback
from support.tensors import noise
from unit.gguf.gguf_bytes import write_gguf

URI = "s3://models/m"
GGUF = "s3://models/g/m.gguf"
I8 = 24
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A store with a file of each format, of which the environment does not know."""
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [64], bytes(64))})
    packed = write_gguf(tmp_path / "m.gguf", {"w": (I8, (64,), noise(64))}, {"general.architecture": "tiny"})
    only_loopback(monkeypatch, NOWHERE)
    monkeypatch.setenv("WEIGHT_READERS_CACHE_DIR", str(tmp_path / "cache"))
    objects = {"models/m/model.safetensors": path.read_bytes(), "models/m/config.json": b"{}"}
    objects["models/g/m.gguf"] = packed.read_bytes()
    with ObjectServer(objects).running() as running:
        yield running


@pytest.mark.parametrize(
    "command", [["inspect"], ["verify"], ["verify", "--sha256"], ["bench", "--rounds", "1"], ["explain"], ["load"]]
)
def test_an_option_of_the_reader_says_where_the_store_is(server: ObjectServer, command: list[str]) -> None:
    done = invoke(*command, URI, "--option", f"endpoint={server.endpoint}", "--json")
    said = json.loads(done.stdout)
    if "--sha256" in command:  # the store keeps none
        assert said["contents"]["without_digest"] == ["model.safetensors"]
    else:
        assert (done.exit_code, said["ok"]) == (0, True), done.stderr
    assert len(server.asked) > 1


def test_side_files_are_fetched_from_where_the_option_says(server: ObjectServer, tmp_path: Path) -> None:
    done = invoke("fetch", URI, tmp_path / "side", "--option", f"endpoint={server.endpoint}")
    assert (done.exit_code, (tmp_path / "side" / "config.json").read_bytes()) == (0, b"{}")


@pytest.mark.parametrize("command", ["inspect", "verify", "bench"])
def test_an_option_that_no_reader_has_is_refused_with_a_close_one(server: ObjectServer, command: str) -> None:
    done = invoke(command, URI, "--option", "endpiont=x")
    assert done.exit_code == 2
    assert "'endpiont'" in done.stderr
    assert "endpoint" in done.stderr
    assert server.asked == []


@pytest.mark.parametrize("command", ["load", "explain"])
def test_with_a_reader_named_the_options_of_the_one_that_fetches_for_it_are_taken(
    server: ObjectServer, command: str
) -> None:
    options = ["--option", f"endpoint={server.endpoint}", "--option", "prefetch=1"]
    done = invoke(command, GGUF, "--reader", "gguf", *options, "--json")
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (0, True), done.stderr
    assert len(server.asked) > 1


@pytest.mark.parametrize("command", ["load", "explain"])
def test_an_option_that_neither_of_the_two_has_is_refused_with_a_close_one(server: ObjectServer, command: str) -> None:
    done = invoke(command, GGUF, "--reader", "gguf", "--option", "endpiont=x")
    said = "Error: reader 'gguf' has no option 'endpiont' (--option). Did you mean 'endpoint'?"
    assert (done.exit_code, done.stderr.strip()) == (2, said)
    assert server.asked == []


@pytest.mark.parametrize("command", ["load", "explain"])
def test_of_a_local_file_nothing_is_fetched_and_the_option_is_refused(tmp_path: Path, command: str) -> None:
    done = invoke(command, tmp_path / "m.gguf", "--reader", "gguf", "--option", "endpoint=http://127.0.0.1:1")
    assert done.exit_code == 2
    assert "reader 'gguf' has no option 'endpoint' (--option)" in done.stderr


@pytest.mark.parametrize("command", [["load", "--reader", "gguf"], ["explain"], ["inspect"]])
def test_of_a_store_that_no_reader_works_in_it_is_not_the_option_that_is_refused(command: list[str]) -> None:
    done = invoke(*command, "az://models/m.gguf", "--option", "account=x")
    assert done.exit_code == 1
    assert "cannot read az" in done.stderr
    assert "Copy the folder to this machine" in done.stderr
    assert "account" not in done.stderr


def test_the_reader_that_the_environment_names_does_not_count_where_none_can_be_named(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHT_READERS_READER", "gguf")
    done = invoke("inspect", URI, "--option", f"endpoint={server.endpoint}", "--json")
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (0, True), done.stderr


def test_a_bad_value_is_refused_as_one_of_the_command_line(server: ObjectServer) -> None:
    done = invoke("inspect", URI, "--option", "endpoint=minio")
    assert (done.exit_code, "must be a URL that begins with http" in done.stderr) == (2, True)


def test_bench_reads_a_store_by_the_readers_that_can_and_without_the_limit(server: ObjectServer) -> None:
    done = invoke("bench", URI, "--rounds", "2", "--option", f"endpoint={server.endpoint}", "--json")
    said = json.loads(done.stdout)
    assert {name: len(samples) for name, samples in said["samples"].items()} == {"runai_streamer": 2}
    assert said["picked"] == said["fastest"] == "runai_streamer"
    assert "s3" in said["skipped"]["safetensors"]


def test_bench_refuses_to_evict_what_is_not_here(server: ObjectServer) -> None:
    done = invoke("bench", URI, "--cold", "--option", f"endpoint={server.endpoint}")
    assert done.exit_code == 1
    assert "objects of a store are not in it" in done.stderr


def test_doctor_says_what_counts_for_a_store_and_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    only_loopback(monkeypatch, NOWHERE)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    done = invoke("doctor")
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "s3://: runai_streamer" in lines
    assert f"endpoint: {NOWHERE} (AWS_ENDPOINT_URL)" in lines
    assert "region: us-east-1 (AWS_REGION)" in lines
    assert "credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in lines
    assert "hunter2" not in done.output + invoke("doctor", "--json").output


def test_doctor_finds_settings_with_which_no_store_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    only_loopback(monkeypatch, "minio:9000")
    done = invoke("doctor", "--json")
    (found,) = [each for each in json.loads(done.stdout)["stores"] if each["scheme"] == "s3"]
    assert done.exit_code == 1
    assert "'minio:9000' (AWS_ENDPOINT_URL) must be a URL" in found["fault"]
    assert "s3://: broken:" in invoke("doctor").stdout
